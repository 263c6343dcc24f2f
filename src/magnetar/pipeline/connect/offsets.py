"""Offsets: a position per topic partition, and ranges [start, end) of them. A decision core.

A position (ledger, entry, batch index) lies just before the message of that id, so the end of a topic is behind the
entry of its last message. EARLIEST lies before every message. Positions compare as tuples do; a message that is not in a
batch has batch index 0. In Spark's logs and in options a position is `{"ledger": 3, "entry": 7, "batch": 0}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.pipeline.connect.errors import OffsetError
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageIdData

FORMS: Final = '"earliest", "latest" or {"ledger": 3, "entry": 7, "batch": 0} (batch may be left out)'


class Position(NamedTuple):
    """Just before the message of this id."""

    ledger: int
    entry: int
    batch: int = 0

    def after(self) -> Position:
        """Just behind the message of this id."""
        return Position(self.ledger, self.entry, self.batch + 1)

    def document(self) -> dict[str, int]:
        return {"ledger": self.ledger, "entry": self.entry, "batch": self.batch}


EARLIEST: Final = Position(-1, -1, 0)
_LATEST_LEDGER: Final = 2**63 - 1
"""Of Java's MessageId.latest; that of MessageId.earliest is -1, which the protocol spells 2^64 - 1."""
Offsets = dict[str, Position]


class Range(NamedTuple):
    """Messages of one topic partition from `start` (inclusive) to `end` (exclusive)."""

    topic: str
    start: Position
    end: Position


def position(document: object) -> Position:
    """From its document. Raises OffsetError."""
    if isinstance(document, Mapping) and {"ledger", "entry"} <= set(document) <= {"ledger", "entry", "batch"}:
        values = [document["ledger"], document["entry"], document.get("batch", 0)]
        if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            return Position(values[0], values[1], max(values[2], 0))
    raise OffsetError(f"{document!r} is not an offset of a topic; give {FORMS}")


def to_document(offsets: Mapping[str, Position]) -> dict[str, dict[str, int]]:
    """As Spark's logs hold it; sorted, so that equal offsets are equal text."""
    return {topic: offsets[topic].document() for topic in sorted(offsets)}


def from_document(document: Mapping[str, Any]) -> Offsets:
    """The other way. Raises OffsetError."""
    return {topic: position(value) for topic, value in document.items()}


def parse(text: str, ids_included: bool = False) -> str | dict[str, Position | str]:
    """An option's value: `earliest`, `latest`, or JSON with a position, one of the two words or the bytes of a message id for each topic.

    `ids_included`: a message whose id is given as bytes lies before the position, as the Pulsar connector reads an end.
    """
    word = text.strip()
    if word.lower() in ("earliest", "latest"):
        return word.lower()
    try:
        document = json.loads(word)
    except ValueError:
        document = None
    if not isinstance(document, dict) or not document:
        raise OffsetError(
            f'{text!r} are not offsets; give earliest, latest, or JSON like {{"topic": ...}} with {FORMS}'
        )
    return {topic: _given(value, ids_included) for topic, value in document.items()}


def _given(value: object, ids_included: bool) -> Position | str:
    if isinstance(value, str) and value in ("earliest", "latest"):
        return value
    if not isinstance(value, list):
        return position(value)
    try:
        found = MessageIdData.FromString(bytes(each & 0xFF for each in value))
    except (TypeError, ValueError, DecodeError):
        raise OffsetError(f"{value!r} are not bytes of a message id; give {FORMS}") from None
    if found.ledgerId >= _LATEST_LEDGER:
        return "latest" if found.ledgerId == _LATEST_LEDGER else "earliest"
    at = Position(found.ledgerId, found.entryId, max(found.batch_index, 0))
    if not ids_included:
        return at
    return at.after() if found.batch_index >= 0 else Position(at.ledger, at.entry + 1)


def ranges(start: Mapping[str, Position], end: Mapping[str, Position]) -> list[Range]:
    """What lies between two offsets; a topic that `start` does not have begins at EARLIEST. Empty ranges are left out."""
    found = (Range(topic, start.get(topic, EARLIEST), end[topic]) for topic in sorted(end))
    return [each for each in found if each.start < each.end]


def split(whole: Range, ledgers: Iterable[tuple[int, int]], parts: int) -> list[Range]:
    """Cut a range into about `parts` of equal entries. `ledgers`: (ledger, entries) in the order of the topic.

    The parts join exactly: each ends where the next begins, the first begins and the last ends as the whole does.
    """
    pieces = [piece for piece in (_within(whole, *ledger) for ledger in ledgers) if piece[2] > piece[1]]
    total = sum(last - first for _, first, last in pieces)
    if parts <= 1 or total <= 1:
        return [whole]
    step = -(-total // min(parts, total))
    cuts: list[Position] = []
    due = step
    for ledger, first, last in pieces:
        while due < last - first:
            cuts.append(Position(ledger, first + due))
            due += step
        due -= last - first
    inner = [cut for cut in cuts if whole.start < cut < whole.end]
    bounds = [whole.start, *inner, whole.end]
    return [Range(whole.topic, low, high) for low, high in pairwise(bounds)]


def total_lag(lags: Iterable[int | None]) -> int | None:
    """None when one of them is not known."""
    found = list(lags)
    known = [lag for lag in found if lag is not None]
    return sum(known) if len(known) == len(found) else None


def stream_lag(source: Any) -> dict[str, int | None]:
    """Entries by topic partition that a streaming query has not read yet. `source`: one of `query.lastProgress.sources`, of this format.

    Spark's progress has where the batch ended and where the topics ended when it was planned. None where that lies in a later ledger, and
    before the first batch; `magnetar topics stats` knows there.
    """
    end, latest = (json.loads(text) if text else {} for text in (source.endOffset, source.latestOffset))
    read = from_document(end)
    return {topic: _behind(read.get(topic), at) for topic, at in from_document(latest).items()}


def _behind(read: Position | None, end: Position) -> int | None:
    if read is None or (read < end and read.ledger != end.ledger):
        return None
    return max(end.entry - read.entry, 0) if read < end else 0


def _within(whole: Range, ledger: int, entries: int) -> tuple[int, int, int]:
    """(ledger, first entry, entry behind the last) of the part of a ledger that touches the range."""
    first = whole.start.entry if ledger == whole.start.ledger else 0
    last = entries
    if ledger == whole.end.ledger:
        last = min(entries, whole.end.entry + (1 if whole.end.batch else 0))
    if ledger < whole.start.ledger or ledger > whole.end.ledger:
        last = first
    return ledger, max(first, 0), last
