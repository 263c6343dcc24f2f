"""A ledger's metadata as a value, and its bytes in the metadata store (BookKeeper meta/LedgerMetadataSerDe).

Bytes: `BookieMetadataFormatVersion\\t<n>\\n`, then for n=3 a varint length and the binary message, for n=2 its text form. New ledgers are
written as 3; a rewritten ledger keeps its version. Version 1 (BookKeeper before 4.2) is lines of text: write quorum, ensemble size and
length, a line for each segment, and a last line that says CLOSED.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.bookkeeper.entry_format import DigestType
from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.wire.bookkeeper.LedgerMetadata_pb2 import LedgerMetadataFormat

FORMAT_LINES: Final = 1
FORMAT_TEXT: Final = 2
FORMAT_BINARY: Final = 3

_HEADER: Final = b"BookieMetadataFormatVersion\t"
_VARINT_BYTES_MAX: Final = 10
_LINES_CLOSED: Final = "CLOSED"
_LINES_IN_RECOVERY: Final = -102
"""Instead of the last entry's id, in version 1: the ledger is being recovered."""


class LedgerState(IntEnum):
    """The numbers of the message's enum."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class Segment(NamedTuple):
    """Entries from `first_entry_id` up to the next segment's are on this ensemble (bookie ids, by index)."""

    first_entry_id: int
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """Length in payload bytes and the last entry id are final only when CLOSED (0 and -1 before)."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    segments: tuple[Segment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = -1
    length: int = 0
    digest_type: DigestType = DigestType.CRC32C
    password: bytes | None = b""
    """None in ledgers of old clients: password and digest type are then not checked against it."""
    ctime_ms: int = -1
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    c_token: int = 0
    """Random per creation: tells a creator whether a node that exists already is its own."""
    format_version: int = FORMAT_BINARY

    @property
    def last_segment(self) -> Segment:
        return self.segments[-1]

    def segment_index(self, entry_id: int) -> int:
        """Index of the segment that holds the entry: the greatest one that starts at or before it."""
        index = bisect_right(self.segments, entry_id, key=_first_entry_id) - 1
        assert index >= 0, "entry ids are not negative"
        return index

    def with_ensemble(self, first_entry_id: int, ensemble: tuple[str, ...]) -> LedgerMetadata:
        """Entries from `first_entry_id` on are stored on `ensemble`: one more segment, or the last one's replaced if it starts there."""
        assert self.state is not LedgerState.CLOSED
        last = self.last_segment.first_entry_id
        assert first_entry_id >= last, "segments ascend; earlier ones hold only confirmed entries"
        kept = self.segments[:-1] if first_entry_id == last else self.segments
        return replace(self, segments=(*kept, Segment(first_entry_id, ensemble)), c_token=0)

    def in_recovery(self) -> LedgerMetadata:
        """OPEN to IN_RECOVERY."""
        assert self.state is not LedgerState.CLOSED
        return replace(self, state=LedgerState.IN_RECOVERY, c_token=0)

    def closed(self, last_entry_id: int, length: int) -> LedgerMetadata:
        """OPEN or IN_RECOVERY to CLOSED."""
        assert self.state is not LedgerState.CLOSED
        assert last_entry_id >= self.last_segment.first_entry_id - 1, "earlier segments hold only confirmed entries"
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length, c_token=0)

    def validate(self) -> None:
        """Raise LedgerMetadataError when the values contradict each other."""
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise LedgerMetadataError(
                f"quorums E={self.ensemble_size} Qw={self.write_quorum} Qa={self.ack_quorum} are not E >= Qw >= Qa >= 1"
            )
        if not self.segments or self.segments[0].first_entry_id != 0:
            raise LedgerMetadataError("the first segment must start at entry 0")
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            if before.first_entry_id >= after.first_entry_id:
                raise LedgerMetadataError(f"segments do not ascend: {before.first_entry_id}, {after.first_entry_id}")
        for segment in self.segments:
            if len(segment.ensemble) != self.ensemble_size:
                raise LedgerMetadataError(f"an ensemble of {len(segment.ensemble)} where {self.ensemble_size} belong")
        if self.state is LedgerState.CLOSED and (self.last_entry_id < -1 or self.length < 0):
            raise LedgerMetadataError(f"closed at entry {self.last_entry_id} with length {self.length}")

    def to_bytes(self) -> bytes:
        """What the metadata store holds."""
        self.validate()
        header = _HEADER + f"{self.format_version}\n".encode()
        if self.format_version == FORMAT_LINES:
            return header + "\n".join(_lines_of(self)).encode()
        message = self._to_message()
        if self.format_version == FORMAT_TEXT:
            message.ClearField("cToken")
            return header + _text_of(message)
        body = message.SerializeToString()
        return header + _varint(len(body)) + body

    @classmethod
    def from_bytes(cls, data: bytes) -> LedgerMetadata:
        """Raises LedgerMetadataError for anything that is not a ledger's metadata of version 1, 2 or 3."""
        line, newline, body = data.partition(b"\n")
        if not line.startswith(_HEADER) or not newline:
            raise LedgerMetadataError(f"ledger metadata starts with {data[:32]!r} instead of its format version")
        version = line[len(_HEADER) :]
        message = LedgerMetadataFormat()
        try:
            if version == b"1":
                metadata = _from_lines(body.decode().splitlines())
                metadata.validate()
                return metadata
            if version == b"3":
                message.ParseFromString(_delimited(body))
            elif version == b"2":
                _parse_text(body, message)
            else:
                raise LedgerMetadataError(
                    f"ledger metadata of format version {version!r} is not supported (1, 2 and 3 are)"
                )
            if not message.IsInitialized():
                raise LedgerMetadataError("ledger metadata lacks required fields")
            metadata = cls._from_message(message, int(version))
        except (DecodeError, ValueError, IndexError) as error:
            raise LedgerMetadataError(f"ledger metadata is damaged: {error}") from error
        metadata.validate()
        return metadata

    def _to_message(self) -> LedgerMetadataFormat:
        message = LedgerMetadataFormat(
            quorumSize=self.write_quorum,
            ensembleSize=self.ensemble_size,
            length=self.length,
            lastEntryId=self.last_entry_id,
            state=LedgerMetadataFormat.State.Value(self.state.name),
            ackQuorumSize=self.ack_quorum,
            ctime=self.ctime_ms,
            cToken=self.c_token,
        )
        for segment in self.segments:
            message.segment.add(ensembleMember=segment.ensemble, firstEntryId=segment.first_entry_id)
        if self.password is not None:
            message.digestType = LedgerMetadataFormat.DigestType.Value(self.digest_type.name)
            message.password = self.password
        for key, value in self.custom_metadata.items():
            message.customMetadata.add(key=key, value=value)
        return message

    @classmethod
    def _from_message(cls, message: LedgerMetadataFormat, version: int) -> LedgerMetadata:
        state = LedgerState(message.state)
        closed = state is LedgerState.CLOSED
        return cls(
            ensemble_size=message.ensembleSize,
            write_quorum=message.quorumSize,
            ack_quorum=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
            segments=tuple(Segment(segment.firstEntryId, tuple(segment.ensembleMember)) for segment in message.segment),
            state=state,
            last_entry_id=message.lastEntryId if closed else -1,
            length=message.length if closed else 0,
            digest_type=DigestType(message.digestType) if message.HasField("digestType") else DigestType.CRC32C,
            password=message.password if message.HasField("password") else None,
            ctime_ms=message.ctime if message.HasField("ctime") else -1,
            custom_metadata={entry.key: entry.value for entry in message.customMetadata},
            c_token=message.cToken,
            format_version=version,
        )


def _lines_of(metadata: LedgerMetadata) -> list[str]:
    lines = [str(metadata.write_quorum), str(metadata.ensemble_size), str(metadata.length)]
    lines += ["\t".join((str(segment.first_entry_id), *segment.ensemble)) for segment in metadata.segments]
    if metadata.state is LedgerState.CLOSED:
        lines.append(f"{metadata.last_entry_id}\t{_LINES_CLOSED}")
    elif metadata.state is LedgerState.IN_RECOVERY:
        lines.append(f"{_LINES_IN_RECOVERY}\t{_LINES_CLOSED}")
    return lines


def _from_lines(lines: list[str]) -> LedgerMetadata:
    """Raises ValueError or IndexError when a line is missing or is not a number."""
    write_quorum, ensemble_size, length = (int(lines[index]) for index in range(3))
    segments: list[Segment] = []
    state, last_entry_id = LedgerState.OPEN, -1
    for line in lines[3:]:
        first, *rest = line.split("\t")
        if rest == [_LINES_CLOSED]:
            recovering = int(first) == _LINES_IN_RECOVERY
            state = LedgerState.IN_RECOVERY if recovering else LedgerState.CLOSED
            last_entry_id = -1 if recovering else int(first)
            break
        segments.append(Segment(int(first), tuple(rest)))
    return LedgerMetadata(
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum,
        segments=tuple(segments),
        state=state,
        last_entry_id=last_entry_id,
        length=length if state is LedgerState.CLOSED else 0,
        password=None,
        format_version=FORMAT_LINES,
    )


def _first_entry_id(segment: Segment) -> int:
    return segment.first_entry_id


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _delimited(body: bytes) -> bytes:
    size = 0
    for index, byte in enumerate(body[:_VARINT_BYTES_MAX]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            message = body[index + 1 :]
            if len(message) != size:
                raise LedgerMetadataError(f"ledger metadata has {len(message)} bytes and says {size}")
            return message
    raise LedgerMetadataError("ledger metadata has no valid length")


# The text format is that of old ledgers only: its modules are not imported at every start.


def _text_of(message: LedgerMetadataFormat) -> bytes:
    from google.protobuf import text_format

    return text_format.MessageToString(message).encode()


def _parse_text(body: bytes, message: LedgerMetadataFormat) -> None:
    """Raises ValueError."""
    from google.protobuf import text_format

    try:
        text_format.Parse(body, message)
    except text_format.ParseError as error:
        raise ValueError(str(error)) from error
