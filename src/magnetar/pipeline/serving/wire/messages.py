"""Messages of the protocol, version 3.0, as bytes and back (PostgreSQL's documentation, "Frontend/Backend Protocol"). Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

PROTOCOL_3: Final = 3 << 16
CANCEL_REQUEST: Final = 80877102
SSL_REQUEST: Final = 80877103
GSS_REQUEST: Final = 80877104


class ProtocolError(Exception):
    """The bytes are not a message of the protocol: the connection ends."""


# ---- In


class Reader:
    """The fields of one message's body. Raises ProtocolError where it ends too early."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise ProtocolError("a message is shorter than it says")
        part = self._data[self._at : end]
        self._at = end
        return part

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def count(self) -> int:
        """How many things follow; the protocol's numbers of them are not negative."""
        return int.from_bytes(self._take(2), "big")

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def uint32(self) -> int:
        return int.from_bytes(self._take(4), "big")

    def byte(self) -> str:
        return chr(self._take(1)[0])

    def text(self) -> str:
        end = self._data.find(0, self._at)
        if end < 0:
            raise ProtocolError("a text does not end")
        part = self._take(end - self._at)
        self._at += 1
        try:
            return part.decode()
        except UnicodeDecodeError:
            raise ProtocolError("a text is not UTF-8; set client_encoding to UTF8") from None

    def value(self) -> bytes | None:
        size = self.int32()
        return None if size == -1 else self._take(size)

    def rest(self) -> bytes:
        return self._take(len(self._data) - self._at)

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._data)


@dataclass(frozen=True, slots=True)
class Parse:
    name: str
    sql: str
    types: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bind:
    portal: str
    statement: str
    formats: tuple[int, ...]
    values: tuple[bytes | None, ...]
    result_formats: tuple[int, ...]


def read_startup(body: bytes) -> dict[str, str]:
    """The parameters behind the version."""
    reader, found = Reader(body), {}
    while not reader.at_end:
        name = reader.text()
        if not name:
            break
        found[name] = reader.text()
    return found


def read_parse(body: bytes) -> Parse:
    reader = Reader(body)
    name, sql = reader.text(), reader.text()
    return Parse(name, sql, tuple(reader.uint32() for _ in range(reader.count())))


def read_bind(body: bytes) -> Bind:
    reader = Reader(body)
    portal, statement = reader.text(), reader.text()
    formats = tuple(reader.int16() for _ in range(reader.count()))
    values = tuple(reader.value() for _ in range(reader.count()))
    results = tuple(reader.int16() for _ in range(reader.count()))
    if any(code not in (0, 1) for code in (*formats, *results)):
        raise ProtocolError("a format is neither text (0) nor binary (1)")
    if len(formats) not in (0, 1, len(values)):
        raise ProtocolError(f"{len(formats)} formats for {len(values)} parameters")
    return Bind(portal, statement, formats, values, results)


# ---- Out


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _text(value: str) -> bytes:
    return value.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode(errors="replace") + b"\x00"


AUTHENTICATION_OK: Final = message(b"R", struct.pack("!i", 0))
AUTHENTICATION_CLEARTEXT: Final = message(b"R", struct.pack("!i", 3))
_SASL, _SASL_CONTINUE, _SASL_FINAL = 10, 11, 12


def sasl(mechanism: str) -> bytes:
    """AuthenticationSASL: how the client is to prove who it is."""
    return message(b"R", struct.pack("!i", _SASL) + _text(mechanism) + b"\x00")


def sasl_continue(data: bytes) -> bytes:
    return message(b"R", struct.pack("!i", _SASL_CONTINUE) + data)


def sasl_final(data: bytes) -> bytes:
    return message(b"R", struct.pack("!i", _SASL_FINAL) + data)


def read_sasl_initial(body: bytes) -> tuple[str, bytes]:
    """SASLInitialResponse: the mechanism and its first message. Raises ProtocolError."""
    mechanism, zero, rest = body.partition(b"\x00")
    if not zero or len(rest) < 4 or int.from_bytes(rest[:4], "big", signed=True) != len(rest) - 4:
        raise ProtocolError("malformed SASL response")
    return mechanism.decode(errors="replace"), rest[4:]


PARSE_COMPLETE: Final = message(b"1")
BIND_COMPLETE: Final = message(b"2")
CLOSE_COMPLETE: Final = message(b"3")
NO_DATA: Final = message(b"n")
PORTAL_SUSPENDED: Final = message(b"s")
EMPTY_QUERY: Final = message(b"I")
COPY_DONE: Final = message(b"c")


def authentication_sasl(mechanisms: Sequence[str]) -> bytes:
    return message(b"R", struct.pack("!i", 10) + b"".join(map(_text, mechanisms)) + b"\x00")


def authentication_sasl_continue(data: bytes) -> bytes:
    return message(b"R", struct.pack("!i", 11) + data)


def authentication_sasl_final(data: bytes) -> bytes:
    return message(b"R", struct.pack("!i", 12) + data)


def parameter_status(name: str, value: str) -> bytes:
    return message(b"S", _text(name) + _text(value))


def backend_key(process: int, secret: int) -> bytes:
    return message(b"K", struct.pack("!II", process, secret))


def ready(status: str) -> bytes:
    """`status`: I idle, T in a transaction, E in one that failed."""
    return message(b"Z", status.encode())


def negotiate_version(options: Sequence[str]) -> bytes:
    """3.0 is the newest version here, and these options of the protocol are not known."""
    return message(b"v", struct.pack("!ii", 0, len(options)) + b"".join(map(_text, options)))


def error(code: str, text: str, *, severity: str = "ERROR", hint: str = "", position: int = 0) -> bytes:
    return message(b"E", _fields(code, text, severity, hint, position))


def notice(text: str, code: str = "00000", severity: str = "WARNING") -> bytes:
    return message(b"N", _fields(code, text, severity, "", 0))


def _fields(code: str, text: str, severity: str, hint: str, position: int) -> bytes:
    fields = [("S", severity), ("V", severity), ("C", code), ("M", text)]
    if hint:
        fields.append(("H", hint))
    if position > 0:
        fields.append(("P", str(position)))
    return b"".join(key.encode() + _text(value) for key, value in fields) + b"\x00"


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a result. `modifier` -1: none."""

    name: str
    oid: int
    size: int
    modifier: int = -1


def row_description(fields: Sequence[Field], formats: Sequence[int]) -> bytes:
    parts = [struct.pack("!H", len(fields))]
    for field, code in zip(fields, formats, strict=True):
        parts += [_text(field.name), struct.pack("!IhIhih", 0, 0, field.oid, field.size, field.modifier, code)]
    return message(b"T", b"".join(parts))


def parameter_description(oids: Sequence[int]) -> bytes:
    return message(b"t", struct.pack(f"!H{len(oids)}I", len(oids), *oids))


_NULL: Final = b"\xff\xff\xff\xff"


def data_rows(columns: Sequence[Sequence[bytes | None]], count: int) -> Iterable[bytes]:
    """A DataRow for each of the rows, given by column."""
    size = struct.Struct("!i").pack
    head = struct.pack("!H", len(columns))
    if not columns:
        return [message(b"D", head)] * count
    sized = [[_NULL if value is None else size(len(value)) + value for value in column] for column in columns]
    return [message(b"D", head + b"".join(row)) for row in zip(*sized, strict=True)]


def command_complete(tag: str) -> bytes:
    return message(b"C", _text(tag))


def copy_out(columns: int) -> bytes:
    return message(b"H", struct.pack(f"!bH{columns}H", 0, columns, *([0] * columns)))


def copy_data(line: bytes) -> bytes:
    return message(b"d", line)
