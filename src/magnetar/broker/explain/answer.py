"""What every explanation has: a subject, a verdict, reasons, details; and how facts look outside."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from magnetar.base.clock import iso_time
from magnetar.broker.explain import sentences
from magnetar.broker.reasons import Named, Reason
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.headers import parse_metadata
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata


@dataclass(frozen=True, slots=True)
class Explanation:
    """`moving`: see `reasons.Standing`. `subject` has `kind` and the names that were asked for."""

    subject: Mapping[str, Any]
    verdict: str
    moving: bool | None
    reasons: Sequence[Reason]
    details: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As the admin API answers it: names in camel case, times in ISO form, positions as `ledger:entry`."""
        return {
            "subject": dict(self.subject),
            "verdict": self.verdict,
            "moving": self.moving,
            "reasons": [_reason(reason) for reason in self.reasons],
            "details": outside(self.details),
        }


def _reason(reason: Reason) -> dict[str, Any]:
    return {
        "code": str(reason.code),
        "text": sentences.text_of(reason),
        "since": iso_time(reason.since_ms) if reason.since_ms > 0 else None,
        "change": sentences.change_of(reason),
        "facts": outside(reason.facts),
    }


_WORD = re.compile(r"_([a-z0-9])")


def outside_name(name: str) -> str:
    """`resumes_at` as `resumesAt`."""
    return _WORD.sub(lambda found: found[1].upper(), name)


def outside(value: Any) -> Any:
    """`value` for JSON. Keys of `Named` mappings are names of consumers and the like: they stay as they are."""
    if isinstance(value, Position):
        return place(value)
    if isinstance(value, Mapping):
        kept = isinstance(value, Named)
        return {key if kept else outside_name(key): outside(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [outside(item) for item in value]
    return value


def stored_metadata(entry: Entry) -> MessageMetadata | None:
    """The whole metadata of an entry; None of one that its producer or the disk has damaged."""
    try:
        return parse_metadata(entry.data)
    except (ValueError, DecodeError):
        return None


def place(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"


def iso_or_none(timestamp_ms: int) -> str | None:
    """None for a time that is not known."""
    return iso_time(timestamp_ms) if timestamp_ms > 0 else None
