"""One scenario with one server: what was asked, and each frame of the answers, without what no two servers share."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any, NamedTuple

from google.protobuf.json_format import MessageToDict

from magnetar.wire.pulsar.frames import encode_frame
from magnetar.wire.pulsar.headers import parse_metadata, payload_of
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.raw import ClosedByServer, RawClient, headers_and_payload

QUIET_S = 0.25
"""An answer is complete when nothing has followed for so long."""
FIRST_S = 8.0
"""A request without an answer is given up after this."""

VOLATILE = {
    "serverVersion": "VERSION",
    "brokerServiceUrl": "URL",
    "address": "ADDRESS",
    "connectedSince": "TIME",
    "publishTime": "TIME",
    "timestamp": "TIME",
}
GENERATED = ("producerName", "consumerName")

_MINUS_ONE = str(2**64 - 1)
"""Two differences are meant everywhere, and not looked at. A MESSAGE outside a partition leaves `partition` out, whose default is the -1
that Pulsar writes: eleven bytes of each message. A receipt of a single message repeats the 0 that the client sent as the highest sequence
id, where Pulsar has -1: clients compare it with the sequence id, and either is not above it."""


class Server(NamedTuple):
    port: int
    http: str


class Conversation:
    """One scenario with one server: what was sent, and each frame that came."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.server = server
        self.namespace = namespace
        self.log: list[tuple[str, list[Any]]] = []
        self._ledgers: dict[int, str] = {}
        self._clients: list[RawClient] = []
        self._arrived: dict[RawClient, list[tuple[BaseCommand, bytes] | None]] = {}
        self._ids = 0

    def topic(self, name: str = "t", domain: str = "persistent") -> str:
        return f"{domain}://{self.namespace}/{name}"

    # ---- Over TCP

    def client(self, *, connect: bool = True, **fields: Any) -> RawClient:
        client = RawClient(self.server.port)
        self._clients.append(client)
        self._arrived[client] = []
        if connect:
            client.connect(**fields)
        return client

    def ask(self, client: RawClient, kind: str, rest: bytes | None = None, **fields: Any) -> list[BaseCommand]:
        """Send a command; `fields` with a dot for the parts of a submessage. Records and returns the answers."""
        self._ids += 1
        command = BaseCommand(type=BaseCommand.Type.Value(kind))
        body = getattr(command, _field_of(kind))
        body.SetInParent()
        if "request_id" in body.DESCRIPTOR.fields_by_name and "request_id" not in fields:
            body.request_id = self._ids
        for name, value in fields.items():
            if value is not None:
                set_field(body, name, value)
        self.put(client, command, rest or b"")
        return self.listen(client, f"{kind} {_shown(fields)}")

    def put(self, client: RawClient, command: BaseCommand, rest: bytes = b"") -> None:
        """Send a command; that the server has closed is found when its answer is read."""
        with suppress(ClosedByServer):
            client.send_bytes(encode_frame(command.SerializeToString(), rest))

    def listen(self, client: RawClient, about: str, first_s: float = FIRST_S) -> list[BaseCommand]:
        """Record what comes until nothing more does. The other clients answer PINGs meanwhile: Pulsar asks whether they are alive."""
        frames: list[Any] = []
        commands: list[BaseCommand] = []
        quiet_at = time.monotonic() + first_s
        while (self._arrived[client] or time.monotonic() < quiet_at) and "CLOSED" not in frames:
            for each in self._clients:
                self._read(each)
            while self._arrived[client]:
                found = self._arrived[client].pop(0)
                if found is None:
                    frames.append("CLOSED")
                    break
                commands.append(found[0])
                frames.append(self._normal(*found))
                quiet_at = time.monotonic() + QUIET_S
        self.log.append((about.replace(self.namespace, "T/N"), frames))
        return commands

    def _read(self, client: RawClient) -> None:
        arrived = self._arrived[client]
        try:
            while arrived[-1:] != [None]:
                arrived.append(client.receive(0.01))
        except TimeoutError:
            return
        except (ClosedByServer, OSError):
            arrived.append(None)

    def send(
        self, client: RawClient, payload: bytes, *, producer_id: int = 1, sequence_id: int = 0, **metadata: Any
    ) -> list[BaseCommand]:
        rest = headers_and_payload(payload, sequence_id, **metadata)
        return self.ask(client, "SEND", rest, producer_id=producer_id, sequence_id=sequence_id)

    # ---- Over HTTP

    def admin(self, method: str, path: str, body: object = None, *, record: bool = False) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"{self.server.http}/admin/v2/{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        if record:
            self.log.append(
                (
                    f"{method} {path}".replace(self.namespace, "T/N"),
                    [{"status": status, "body": self._value(_json(text))}],
                )
            )
        elif status >= 400:
            raise RuntimeError(f"{method} {path}: {status} {text!r}")
        return _json(text)

    def close(self) -> None:
        for client in self._clients:
            client.close()

    # ---- What no two servers share

    def _normal(self, command: BaseCommand, rest: bytes) -> Any:
        document = MessageToDict(command, preserving_proto_field_name=False)
        kind = document.pop("type")
        found: dict[str, Any] = {kind: self._value(next(iter(document.values()), {}))}
        if command.type == BaseCommand.MESSAGE:
            metadata = MessageToDict(parse_metadata(rest))
            found["metadata"] = self._value(metadata)
            found["payload"] = payload_of(rest).hex()
        return found

    def _value(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            if key == "messageId" and value.get("partition") == -1 and "batchIndex" not in value:
                value = {name: item for name, item in value.items() if name != "partition"}
            return {name: self._value(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if key == "ledgerId" and int(value) < 2**63 - 1:
            return self._ledgers.setdefault(int(value), f"ledger {len(self._ledgers)}")
        if key == "highestSequenceId" and value == _MINUS_ONE:
            return "0"
        if key in VOLATILE and value:
            return VOLATILE[key]
        if key in GENERATED and value and not str(value).startswith("my-"):
            return "GENERATED"
        if isinstance(value, str):
            return value.replace(self.namespace, "T/N")
        return value


def _field_of(kind: str) -> str:
    """The field of BaseCommand with a type's body. Their names are not uniform: `closeProducer` as well as `close_producer`."""
    special = {"PARTITIONED_METADATA": "partitionMetadata", "LOOKUP": "lookupTopic"}
    plain = kind.replace("_", "").lower()
    names = [field.name for field in BaseCommand.DESCRIPTOR.fields]
    return special.get(kind) or next(name for name in names if name.replace("_", "").lower() == plain)


def set_field(body: Any, name: str, value: Any) -> None:
    *path, last = name.split(".")
    for part in path:
        body = getattr(body, part)
    if isinstance(value, list):
        for each in value:
            if isinstance(each, dict):
                getattr(body, last).add(**each)
            else:
                getattr(body, last).append(each)
    elif isinstance(value, dict):
        target = getattr(body, last)
        target.SetInParent()
        for key, item in value.items():
            set_field(target, key, item)
    else:
        setattr(body, last, value)


def _shown(fields: dict[str, Any]) -> str:
    return " ".join(f"{name}={value!r}" for name, value in fields.items() if value is not None)


def _json(text: bytes) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text.decode(errors="replace")
