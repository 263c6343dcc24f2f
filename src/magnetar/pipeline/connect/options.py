"""The data source's options, by the names of the Pulsar connector for Spark; credentials never show in their text. A decision core."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from magnetar.pipeline.connect.errors import OptionError
from magnetar.pipeline.connect.offsets import Position, parse
from magnetar.pipeline.connect.option_names import (
    ADMIN,
    CLIENT,
    PRODUCER,
    READ,
    READER,
    TOPICS,
    WRITE,
    WRITE_FRAME,
    known,
)

POLL_TIMEOUT_MS: Final = 120_000
"""A task that gets no message for so long fails, with ReadStalledError; Spark runs it again."""
OPERATION_TIMEOUT_MS: Final = 30_000
RECEIVER_QUEUE: Final = 5000
"""Messages that the broker may send a task ahead."""
COMPRESSIONS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
SCHEMAS: Final = ("json", "avro")
Times = int | dict[str, int]
"""Milliseconds, for all topics or by topic."""


@dataclass(frozen=True)
class Connection:
    """How to reach the broker. `repr` leaves the credentials out."""

    service_url: str
    admin_url: str | None = None
    auth_plugin: str | None = None
    auth_params: str | None = field(default=None, repr=False)
    tls_trust_certs: str | None = None
    tls_allow_insecure: bool = False
    tls_validate_hostname: bool = True
    operation_timeout_ms: int = OPERATION_TIMEOUT_MS
    connection_timeout_ms: int | None = None
    io_threads: int | None = None
    listener_name: str | None = None
    admin: AdminAccess | None = None


@dataclass(frozen=True)
class AdminAccess:
    """What the admin API is asked with, where that is not what the broker is."""

    auth_plugin: str | None = None
    auth_params: str | None = field(default=None, repr=False)
    tls_trust_certs: str | None = None
    tls_allow_insecure: bool = False
    tls_validate_hostname: bool = True


@dataclass(frozen=True)
class ReadOptions:
    """What to read. Exactly one of `topics` (one name or more) and `pattern` is set.

    `subscription`: acknowledge there. `held_by`: somebody else acknowledges there what was read, and nothing else.
    """

    connection: Connection
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    starting: str | dict[str, Position | str] | None = None
    ending: str | dict[str, Position | str] = "latest"
    starting_time_ms: Times | None = None
    ending_time_ms: Times | None = None
    allow_different_schemas: bool = False
    wait_for_topics: bool = False
    fail_on_data_loss: bool = True
    subscription: str | None = None
    held_by: str | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    min_partitions: int = 1
    poll_timeout_ms: int = POLL_TIMEOUT_MS
    receiver_queue: int = RECEIVER_QUEUE
    pushdown: bool = False


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Raises OptionError, which names the option and the fix."""
    options = known(given, READ, "reading")
    topics, pattern = _topics(options)
    connection = _connection(options)
    if pattern and not connection.admin_url:
        raise OptionError(
            "topicsPattern needs the broker's list of topics: give admin.url, such as http://localhost:8080"
        )
    starting = options.get("startingoffsets")
    starting_time = _times(options, "startingTime")
    if starting is not None and starting_time is not None:
        raise OptionError("startingOffsets and startingTime exclude each other: leave one out")
    ending = parse(options.get("endingoffsets", "latest"), ids_included=True)
    if ending == "earliest":
        raise OptionError("endingOffsets=earliest would read nothing: give latest or JSON")
    ending_time = _times(options, "endingTime")
    if ending_time is not None and "endingoffsets" in options:
        raise OptionError("endingOffsets and endingTime exclude each other: leave one out")
    named, prefix = options.get("predefinedsubscription"), options.get("subscriptionprefix")
    if named and prefix:
        raise OptionError("predefinedSubscription and subscriptionPrefix exclude each other: leave one out")
    return ReadOptions(
        connection=connection,
        topics=topics,
        pattern=pattern,
        starting=None if starting is None else parse(starting),
        ending=ending,
        starting_time_ms=starting_time,
        ending_time_ms=ending_time,
        allow_different_schemas=_boolean(options, "allowDifferentTopicSchemas", False),
        wait_for_topics=_boolean(options, "waitingForNonExistedTopic", False),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", True),
        subscription=named or (f"{prefix}-magnetar" if prefix else None),
        held_by=options.get("heldbysubscription"),
        max_messages=_integer(options, "maxMessagesPerTrigger", 1),
        max_bytes=_integer(options, "maxBytesPerTrigger", 1),
        min_partitions=_integer(options, "minPartitions", 1) or 1,
        poll_timeout_ms=_integer(options, "pollTimeoutMs", 1) or POLL_TIMEOUT_MS,
        receiver_queue=_integer(options, f"{READER}receiverQueueSize", 1) or RECEIVER_QUEUE,
        pushdown=_boolean(options, "pushdown", False),
    )


_STARTUP_MODE: Final = "scan.startup.mode"
_STARTUP_MILLIS: Final = ("scan.startup.timestamp.millis", "scan.startup.timestamp_millis")
_TOKEN: Final = "auth.token"
_TOKEN_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


def from_risingwave(given: Mapping[str, str]) -> dict[str, str]:
    """RisingWave's names of options of its Pulsar connector as this connector's; all others as they are. Raises OptionError.

    `scan.startup.mode` ('earliest', 'latest', 'timestamp'), `scan.startup.timestamp.millis`, `auth.token`.
    """
    lower = {name.lower(): value for name, value in given.items()}
    found = {n: v for n, v in given.items() if n.lower() not in (_STARTUP_MODE, *_STARTUP_MILLIS, _TOKEN)}
    millis = next((lower[name] for name in _STARTUP_MILLIS if name in lower), None)
    mode = lower.get(_STARTUP_MODE, "timestamp" if millis is not None else "").lower()
    if mode in ("earliest", "latest") and millis is None:
        found["startingOffsets"] = mode
    elif mode == "timestamp" and millis is not None:
        found["startingTime"] = millis
    elif mode:
        raise OptionError(
            f"{_STARTUP_MODE} is {mode!r}: give 'earliest', 'latest', or 'timestamp' together with {_STARTUP_MILLIS[0]}"
        )
    if mode and ("startingoffsets" in lower or "startingtime" in lower):
        raise OptionError(f"{_STARTUP_MODE} and startingOffsets or startingTime say the same: leave one out")
    if _TOKEN in lower:
        if f"{CLIENT}authparams" in lower:
            raise OptionError(f"{_TOKEN} and {CLIENT}authParams say the same: leave one out")
        found |= {f"{CLIENT}authPluginClassName": _TOKEN_PLUGIN, f"{CLIENT}authParams": f"token:{lower[_TOKEN]}"}
    return found


@dataclass(frozen=True)
class WriteOptions:
    """Where to write. Without `topic` the rows say it. `schema`: json or avro, None for values that are bytes already."""

    connection: Connection
    topic: str | None = None
    producer_name: str | None = None
    schema: str | None = None
    compression: str = "NONE"
    send_timeout_ms: int | None = None


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Of a sink, whose values are encoded already. Raises OptionError, which names the option and the fix."""
    return _write_options(known(given, WRITE, "writing"))


def frame_options(given: Mapping[str, str]) -> WriteOptions:
    """Of a DataFrame, which may be encoded by a schema of its columns. Raises OptionError as well."""
    return _write_options(known(given, WRITE_FRAME, "writing"))


def _write_options(options: Mapping[str, str]) -> WriteOptions:
    if not _boolean(options, f"{PRODUCER}blockIfQueueFull", True):
        raise OptionError(f"{PRODUCER}blockIfQueueFull=false would lose rows: leave it out")
    return WriteOptions(
        connection=_connection(options),
        topic=full_name(options["topic"]) if "topic" in options else None,
        producer_name=options.get("producername", options.get(f"{PRODUCER}producername".lower())),
        schema=_one_of(options, "schema", SCHEMAS),
        compression=_one_of(options, f"{PRODUCER}compressionType", COMPRESSIONS) or "NONE",
        send_timeout_ms=_integer(options, f"{PRODUCER}sendTimeoutMs", 1),
    )


def full_name(topic: str) -> str:
    """`a` and `tenant/namespace/a` as Pulsar completes them. Raises OptionError."""
    name = topic.strip()
    domain, mark, path = name.rpartition("://")
    parts = path.split("/")
    if not mark and len(parts) == 1:
        parts = ["public", "default", *parts]
    if domain not in ("", "persistent", "topic") or len(parts) != 3 or not all(parts):
        raise OptionError(
            f"{topic!r} is not a persistent or a scalable topic; name it persistent://tenant/namespace/topic or topic://tenant/namespace/topic"
        )
    return f"{domain or 'persistent'}://" + "/".join(parts)


def offset_name(topic: str) -> str:
    """A name in offsets, which may be that of a segment. Raises OptionError."""
    return topic if topic.startswith("segment://") else full_name(topic)


def _topics(options: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    given = [name for name in TOPICS if name.lower() in options]
    if len(given) != 1:
        raise OptionError(
            f"give exactly one of topic, topics and topicsPattern; there are: {', '.join(given) or 'none'}"
        )
    value = options[given[0].lower()]
    if given[0] == "topicsPattern":
        if value.startswith("topic://"):
            raise OptionError("topicsPattern finds classic topics only: name scalable ones with topic or topics")
        try:
            re.compile(value)
        except re.error as error:
            raise OptionError(f"topicsPattern is not a valid regular expression: {error}") from error
        return (), value
    names = [value] if given[0] == "topic" else [name for name in value.split(",") if name.strip()]
    if not names:
        raise OptionError("topics is empty: give names separated by commas")
    return tuple(dict.fromkeys(full_name(name) for name in names)), None


def _connection(options: Mapping[str, str]) -> Connection:
    url = options.get("service.url", "").strip()
    if not re.match(r"pulsar(\+ssl)?://[^\s/]", url):
        raise OptionError(
            f"service.url is {'missing' if not url else 'not a valid Pulsar URL'}: give one like pulsar://localhost:6650"
        )
    admin = options.get("admin.url", "").strip().rstrip("/") or None
    if admin and not re.match(r"https?://[^\s/]", admin):
        raise OptionError("admin.url is not a valid HTTP URL: give one like http://localhost:8080")
    if _boolean(options, f"{CLIENT}useTls", False) and not url.startswith("pulsar+ssl://"):
        raise OptionError(f"{CLIENT}useTls=true needs a service.url like pulsar+ssl://localhost:6651")
    return Connection(
        service_url=url,
        admin_url=admin,
        auth_plugin=options.get(f"{CLIENT}authpluginclassname"),
        auth_params=options.get(f"{CLIENT}authparams"),
        tls_trust_certs=options.get(f"{CLIENT}tlstrustcertsfilepath"),
        tls_allow_insecure=_boolean(options, f"{CLIENT}tlsAllowInsecureConnection", False),
        tls_validate_hostname=_boolean(options, f"{CLIENT}tlsHostnameVerificationEnable", True),
        operation_timeout_ms=_integer(options, f"{CLIENT}operationTimeoutMs", 1) or OPERATION_TIMEOUT_MS,
        connection_timeout_ms=_integer(options, f"{CLIENT}connectionTimeoutMs", 1),
        io_threads=_integer(options, f"{CLIENT}numIoThreads", 1),
        listener_name=options.get(f"{CLIENT}listenername"),
        admin=_admin_access(options) if any(name.startswith(ADMIN) for name in options) else None,
    )


def _admin_access(options: Mapping[str, str]) -> AdminAccess:
    """What is not said for the admin API is as for the broker."""

    def of(name: str) -> str | None:
        return options.get(f"{ADMIN}{name}".lower(), options.get(f"{CLIENT}{name}".lower()))

    def switched(name: str, default: bool) -> bool:
        return _boolean(options, f"{ADMIN}{name}", _boolean(options, f"{CLIENT}{name}", default))

    return AdminAccess(
        of("authPluginClassName"),
        of("authParams"),
        of("tlsTrustCertsFilePath"),
        switched("tlsAllowInsecureConnection", False),
        switched("tlsHostnameVerificationEnable", True),
    )


def _boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name.lower())
    if value is None:
        return default
    if value.lower() not in ("true", "false"):
        raise OptionError(f"{name} is {value!r}: give true or false")
    return value.lower() == "true"


def _integer(options: Mapping[str, str], name: str, least: int) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    if not re.fullmatch(r"\d{1,18}", value) or int(value) < least:
        raise OptionError(f"{name} is {value!r}: give a whole number of at least {least}")
    return int(value)


def _one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str | None:
    value = options.get(name.lower())
    if value is None:
        return None
    for each in allowed:
        if each.lower() == value.lower():
            return each
    raise OptionError(f"{name} is {value!r}: give one of {', '.join(allowed)}")


def _times(options: Mapping[str, str], name: str) -> Times | None:
    """Milliseconds, or JSON with them by topic."""
    value = options.get(name.lower())
    if value is None or not value.lstrip().startswith("{"):
        return _integer(options, name, 0)
    try:
        times = json.loads(value)
    except ValueError as error:
        raise OptionError(f"{name} is not JSON: {error}") from error
    if not times or not all(isinstance(each, int) and each >= 0 for each in times.values()):
        raise OptionError(f'{name} is {value!r}: give milliseconds, or JSON like {{"topic": 1700000000000}}')
    return {full_name(topic): time_ms for topic, time_ms in times.items()}
