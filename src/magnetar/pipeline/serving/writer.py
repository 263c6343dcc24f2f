"""The rows of INSERT, UPDATE and DELETE as messages in a table's topic, durable when `send` returns.

Each client writes with the credential that it showed this server, so who may write is what the broker says: whoever may produce to the
topic. Connections to brokers are shared by clients of the same credential. Used in worker threads.
"""

from __future__ import annotations

import json
import math
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from magnetar.pipeline.connect.offsets import Position, from_document
from magnetar.pipeline.connect.options import Connection, full_name, read_options
from magnetar.pipeline.errors import PipelineError
from magnetar.pipeline.serving.sql.translate import QueryError
from magnetar.pipeline.serving.sql.writes import Write
from magnetar.pipeline.sql.options import REDACTED, Options
from magnetar.pipeline.sql.statements import ROW_KEY, CreateSource
from magnetar.pipeline.views.source.options import reader_options

if TYPE_CHECKING:
    import pulsar

ROWS_MAX: Final = 1_000_000
"""Of one statement, and of all statements of a transaction; more is refused with 54000."""

BATCH_ROWS: Final = 1000
BATCH_BYTES: Final = 1 << 20
SEND_TIMEOUT_MS: Final = 30_000


class Change(NamedTuple):
    """`value` None: the row of the key goes."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Credential:
    """What a client showed, for the broker to judge."""

    plugin: str
    params: str = field(repr=False)


def token_credential(token: bytes) -> Credential:
    return Credential("org.apache.pulsar.client.impl.auth.AuthenticationToken", f"token:{token.decode()}")


def basic_credential(user: str, password: bytes) -> Credential:
    shown = json.dumps({"username": user, "password": password.decode(errors="replace")})
    return Credential("org.apache.pulsar.client.impl.auth.AuthenticationBasic", shown)


def changes_of(write: Write, batches: Sequence[pa.RecordBatch]) -> list[Change]:
    """The messages of a statement's rows. Raises QueryError for a value that its column does not take; then nothing is sent."""
    _check_not_null(write, batches)
    table = write.table
    json_columns = {column.name for column in table.columns if (column.type or "").upper() in ("JSON", "JSONB")}
    keys = [next((name for name in write.names if name.lower() == key.lower()), key) for key in table.primary_key]
    found: list[Change] = []
    for batch in batches:
        try:
            rows = batch.rename_columns(list(write.names)).to_pylist()
        except (ValueError, OverflowError) as error:
            raise QueryError("22008", f"a time is out of range: {error}") from error
        for row in rows:
            key = row.pop(ROW_KEY, None) or (uuid.uuid4().hex if keys in ([ROW_KEY], []) else None)
            if write.verb == "DELETE":
                found.append(Change(key or _key(row, keys), None))
                continue
            for name in json_columns:
                _check_json(name, row.get(name))
            value = {name: _plain(each) for name, each in row.items()}
            found.append(Change(key or _key(value, keys), _json_bytes(value)))
    return found


def _check_not_null(write: Write, batches: Iterable[pa.RecordBatch]) -> None:
    needed = {column.name for column in write.table.columns if column.not_null}
    if write.verb == "INSERT":
        missing = needed - set(write.names)
        if missing:
            raise _is_null(min(missing), write.table)
    for batch in batches:
        for at, name in enumerate(write.names):
            if name in needed and batch.column(at).null_count:
                raise _is_null(name, write.table)


def _is_null(column: str, table: CreateSource) -> QueryError:
    return QueryError(
        "23502", f'null value in column "{column}" of relation "{table.name}" violates not-null constraint'
    )


def _check_json(column: str, text: str | None) -> None:
    if text is not None:
        try:
            json.loads(text)
        except ValueError as error:
            raise QueryError("22P02", f'invalid input syntax for type json in column "{column}": {error}') from None


def _key(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    from magnetar.pipeline.views.sink.messages import message_key

    text = message_key({name: _plain(row[name]) for name in keys}, tuple(keys))
    assert text is not None
    return text


def _plain(value: Any) -> Any:
    """A number that JSON does not have is the text that stands for it when it is read."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _json_bytes(row: Mapping[str, Any]) -> bytes:
    from magnetar.pipeline.connect.writing.encoding import json_bytes

    return json_bytes(row)


class _Link:
    """A client of a broker and its producers. `users`: sessions that have it."""

    def __init__(self, connection: Connection) -> None:
        from magnetar.pipeline.connect.client_options import open_client

        self.users = 0
        self._client = open_client(connection)
        self._lock = threading.Lock()
        self._producers: dict[str, pulsar.Producer] = {}

    def producer(self, topic: str) -> Any:
        import pulsar

        with self._lock:
            if topic not in self._producers:
                self._producers[topic] = self._client.create_producer(
                    topic,
                    schema=pulsar.schema.BytesSchema(),
                    batching_enabled=True,
                    batching_max_messages=BATCH_ROWS,
                    batching_max_allowed_size_in_bytes=4 * BATCH_BYTES,
                    batching_max_publish_delay_ms=1,
                    max_pending_messages=4 * BATCH_ROWS,
                    block_if_queue_full=True,
                    send_timeout_millis=SEND_TIMEOUT_MS,
                    message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
                )
            return self._producers[topic]

    def close(self) -> None:
        with suppress(Exception):  # of a broker that is gone
            self._client.close()


class Writer:
    """Of one pipeline. `send` and `release` may be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[Connection, _Link] = {}
        self._written: dict[str, dict[str, Position]] = {}

    def connection(self, table: CreateSource, credential: Credential | None) -> Connection:
        """How a client reaches the table's broker. Raises QueryError."""
        given = Options({name: value for name, value in table.options.items() if REDACTED not in value})
        lacks = len(given) < len(table.options)
        if credential is None and lacks:
            raise QueryError(
                "42501",
                f'permission denied for table "{table.name}": its broker asks who writes, and this connection showed no credential',
                "connect with a token, or with user and password, that the broker knows",
            )
        try:
            found = read_options(reader_options(replace(table, options=given))).connection
        except PipelineError as error:
            raise QueryError("58000", f"{table.name}: {error}") from error
        if credential is None:
            return replace(found, auth_plugin=None, auth_params=None)
        return replace(found, auth_plugin=credential.plugin, auth_params=credential.params)

    def open(self, connection: Connection) -> None:
        """For a session, until it `release`s it."""
        with self._lock:
            if connection not in self._links:
                self._links[connection] = _Link(connection)
            self._links[connection].users += 1

    def release(self, connection: Connection) -> None:
        with self._lock:
            link = self._links[connection]
            link.users -= 1
            if link.users:
                return
            del self._links[connection]
        link.close()

    def send(self, table: CreateSource, connection: Connection, changes: Sequence[Change]) -> None:
        """In this order; returns when the broker has all of them. Raises QueryError: then some may be there and some not."""
        import pulsar

        topic = topic_of(table)
        done = threading.Event()
        lock = threading.Lock()
        left, failed, ends = len(changes), [], dict[str, Position]()

        def sent(result: Any, message_id: Any) -> None:
            nonlocal left
            with lock:
                left -= 1
                if result != pulsar.Result.Ok:
                    failed.append(result)
                else:
                    part = message_id.partition()
                    name = topic if part < 0 else f"{topic}-partition-{part}"
                    at = Position(message_id.ledger_id(), message_id.entry_id(), max(message_id.batch_index(), 0))
                    ends[name] = max(ends.get(name, at), at)
                if not left:
                    done.set()

        try:
            producer = self._links[connection].producer(topic)
            for change in changes:
                producer.send_async(change.value, sent, partition_key=change.key)
            producer.flush()
        except pulsar.PulsarException as error:
            raise _failed(table, type(error).__name__, str(error)) from error
        if not done.wait(2 * SEND_TIMEOUT_MS / 1000):
            raise _failed(table, "Timeout", "the broker does not answer")
        with self._lock:
            known = self._written.setdefault(table.name, {})
            for name, at in ends.items():
                known[name] = max(known.get(name, at), at)
        if failed:
            raise _failed(table, str(failed[0]).rpartition(".")[2], str(failed[0]))

    def written(self) -> dict[str, dict[str, Position]]:
        """The last message that this server wrote, by table and by topic partition."""
        with self._lock:
            return {table: dict(ends) for table, ends in self._written.items()}


def topic_of(table: CreateSource) -> str:
    """Where its rows lie."""
    return full_name(next(value for name, value in table.options.items() if name.lower() == "topic"))


def is_read(written: Mapping[str, Mapping[str, Position]], sources: Mapping[str, Any]) -> bool:
    """Whether a manifest with these positions of its sources holds all that was written. Tables that are gone are waited for no longer."""
    for table, ends in written.items():
        if table in sources:
            at = from_document(sources[table])
            if any(topic not in at or at[topic] <= end for topic, end in ends.items()):
                return False
    return True


def _failed(table: CreateSource, kind: str, text: str) -> QueryError:
    if "Auth" in kind or "auth" in text.lower():
        return QueryError(
            "42501",
            f'permission denied for table "{table.name}": the broker does not let this role produce to its topic',
            "grant it: magnetar namespaces grant-permission TENANT/NAMESPACE --role ROLE --actions produce",
        )
    if "TooBig" in kind:
        return QueryError("54000", f"a row of {table.name} is larger than the broker takes; no such row was written")
    if "Quota" in kind:
        return QueryError("53100", f"the topic of {table.name} has reached its quota: {text}")
    return QueryError(
        "58030",
        f"the broker of {table.name} did not confirm the rows ({text}): some may be written and some not",
        "look again after FLUSH; a repeated INSERT replaces rows of the same key",
    )
