"""What clients of a cluster were told while faults went on, and what must hold of it afterwards. Pure: it only looks at records.

All moments are seconds of one monotonic clock. A stream is a topic without partitions, or one partition.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Place = tuple[int, int, int]
"""Ledger, entry, batch index (-1 outside a batch)."""

Message = tuple[str, int]
"""Who sent it, and its number in the payload, counted from 0."""

UNFLUSHED_S = 1.0
"""Acknowledgements so young may be undone by a fault: cursors are written once a second."""


@dataclass(slots=True)
class Append:
    """One send. Without `answered_s` nobody knows what became of it; `error` names a failure, after which nobody knows either."""

    message: Message
    called_s: float
    answered_s: float | None = None
    stream: str = ""
    place: Place | None = None
    """As the receipt says; with deduplication a repeat's receipt may have none."""
    error: str = ""

    @property
    def acknowledged(self) -> bool:
        return self.answered_s is not None and not self.error


@dataclass(frozen=True, slots=True)
class Read:
    """One delivery to a consumer. `ordered`: its subscription has one consumer at a time."""

    subscription: str
    consumer: str
    ordered: bool
    stream: str
    place: Place
    message: Message
    at_s: float


@dataclass(frozen=True, slots=True)
class Consumed:
    """A consumer has acknowledged a delivery."""

    subscription: str
    stream: str
    place: Place
    at_s: float


@dataclass(slots=True)
class Fault:
    """`settled_s`: every producer had a receipt for something sent after the fault was mended."""

    kind: str
    detail: str
    start_s: float
    settled_s: float


@dataclass(slots=True)
class History:
    """`logs`: every stream read again from its first message on. `left`: what each subscription still gave at the very end."""

    deduplicated: bool = False
    slack_s: float = 1.0
    """What a busy machine adds to the bound of acknowledgements."""
    appends: list[Append] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    consumed: list[Consumed] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    logs: dict[str, list[tuple[Place, Message]]] = field(default_factory=dict)
    subscriptions: dict[str, list[str]] = field(default_factory=dict)
    """Subscription -> its streams; all of them begin with the first message."""
    left: dict[str, list[tuple[str, Place]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Violation:
    promise: str
    text: str


def check(history: History) -> list[Violation]:
    """Every broken promise."""
    checkers = (
        refused,
        lost,
        misplaced,
        duplicated,
        reordered,
        out_of_time,
        invented,
        vanished,
        delivered_out_of_order,
        skipped,
        undone,
        left_over,
    )
    return [Violation(checker.__name__, text) for checker in checkers for text in checker(history)]


def refused(history: History) -> Iterator[str]:
    """A producer that waits for ever is never told no."""
    for append in history.appends:
        if append.error:
            yield f"{append.message}: {append.error}"


def lost(history: History) -> Iterator[str]:
    """P1: what has a receipt is stored."""
    stored = {message for log in history.logs.values() for _, message in log}
    for append in history.appends:
        if append.acknowledged and append.message not in stored:
            yield f"{append.message} has a receipt for {append.stream} {append.place}"


def misplaced(history: History) -> Iterator[str]:
    """P1: it is where the receipt says."""
    logs = {stream: dict(log) for stream, log in history.logs.items()}
    for append in history.appends:
        if append.acknowledged and append.place is not None:
            found = logs.get(append.stream, {}).get(append.place)
            if found != append.message:
                yield f"{append.message} has a receipt for {append.stream} {append.place}, where there is {found}"


def duplicated(history: History) -> Iterator[str]:
    """P3: with deduplication nothing is stored twice; without it only what had no receipt when a fault was there."""
    appends = {append.message: append for append in history.appends}
    copies = Counter(message for log in history.logs.values() for _, message in log)
    for message, count in copies.items():
        if count > 1 and (history.deduplicated or not _met_a_fault(history, appends.get(message))):
            yield f"{message} is stored {count} times"


def _met_a_fault(history: History, append: Append | None) -> bool:
    if append is None:
        return False
    return any(
        append.called_s <= fault.settled_s and (append.answered_s is None or append.answered_s >= fault.start_s)
        for fault in history.faults
    )


def reordered(history: History) -> Iterator[str]:
    """P2: in each stream the first occurrences of a producer's messages ascend, and so do the places."""
    for stream, log in history.logs.items():
        yield from (f"{stream}: {text}" for text in _descents(message for _, message in log))
        for (earlier, _), (later, _) in itertools.pairwise(log):
            if later <= earlier:
                yield f"{stream}: {later} is read after {earlier}"


def _descents(messages: Iterable[Message]) -> Iterator[str]:
    """First occurrences that come after a higher number of the same producer."""
    seen: set[Message] = set()
    highest: dict[str, int] = {}
    for message in messages:
        producer, number = message
        if message not in seen and number < highest.get(producer, -1):
            yield f"{message} comes after {highest[producer]}"
        seen.add(message)
        highest[producer] = max(highest.get(producer, -1), number)


def out_of_time(history: History) -> Iterator[str]:
    """What was sent after another message had its receipt is stored behind that one, whoever sent them: one log, one writer."""
    streams: dict[str, list[Append]] = defaultdict(list)
    for append in history.appends:
        if append.acknowledged and append.place is not None:
            streams[append.stream].append(append)
    for stream, appends in streams.items():
        answered = sorted(appends, key=lambda append: append.answered_s or 0.0)
        position, highest = 0, answered[0]
        for append in sorted(appends, key=lambda append: append.called_s):
            while (answered[position].answered_s or 0.0) < append.called_s:
                highest = max(highest, answered[position], key=_place)
                position += 1
            if position and _place(append) <= _place(highest):
                yield f"{stream}: {append.message} at {append.place} was sent after the receipt of {highest.place}"


def _place(append: Append) -> Place:
    assert append.place is not None
    return append.place


def invented(history: History) -> Iterator[str]:
    """Nobody reads what was not sent yet."""
    called = {append.message: append.called_s for append in history.appends}
    for read in history.reads:
        if read.at_s < called.get(read.message, float("inf")):
            yield f"{read.consumer} read {read.message} before it was sent"
    for stream, log in history.logs.items():
        for place, message in log:
            if message not in called:
                yield f"{stream} holds {message} at {place}, which nobody sent"


def vanished(history: History) -> Iterator[str]:
    """What anybody has read stays, receipt or not, where it was read: nothing is given out before it is stored for good."""
    logs = {stream: dict(log) for stream, log in history.logs.items()}
    for read in history.reads:
        found = logs.get(read.stream, {}).get(read.place)
        if found != read.message:
            yield f"{read.consumer} read {read.message} at {read.stream} {read.place}, where there is {found}"


def delivered_out_of_order(history: History) -> Iterator[str]:
    """P2 for whoever reads alone: each stream's messages come in their order, repeats apart."""
    flows: dict[tuple[str, str], list[Read]] = defaultdict(list)
    for read in history.reads:
        if read.ordered:
            flows[read.subscription, read.stream].append(read)
    for (subscription, stream), reads in flows.items():
        reads.sort(key=lambda read: read.at_s)
        for text in _descents(read.message for read in reads):
            yield f"{subscription} on {stream}: {text}"


def skipped(history: History) -> Iterator[str]:
    """P6: every subscription got every message."""
    delivered = {(read.subscription, read.stream, read.place) for read in history.reads}
    for subscription, streams in history.subscriptions.items():
        for stream in streams:
            for place, message in history.logs.get(stream, []):
                if (subscription, stream, place) not in delivered:
                    yield f"{subscription} never got {message}, {stream} {place}"


def undone(history: History) -> Iterator[str]:
    """P5: what was acknowledged comes again only if a fault met the acknowledgement before it was written."""
    last: dict[tuple[str, str, Place], float] = {}
    moments: dict[str, list[float]] = defaultdict(list)
    for read in history.reads:
        key = read.subscription, read.stream, read.place
        last[key] = max(last.get(key, 0.0), read.at_s)
        moments[read.subscription].append(read.at_s)
    for times in moments.values():
        times.sort()
    for done in _first_acknowledgements(history.consumed):
        again_s = last.get((done.subscription, done.stream, done.place), 0.0)
        if again_s > done.at_s and not _excused(history, done.at_s, again_s, moments[done.subscription]):
            yield f"{done.subscription} got {done.stream} {done.place} {again_s - done.at_s:.2f} s after its acknowledgement"


def _first_acknowledgements(consumed: list[Consumed]) -> list[Consumed]:
    first: dict[tuple[str, str, Place], Consumed] = {}
    for done in sorted(consumed, key=lambda done: done.at_s):
        first.setdefault((done.subscription, done.stream, done.place), done)
    return list(first.values())


def _excused(history: History, acked_s: float, again_s: float, moments: list[float]) -> bool:
    """The fault came within the time in which cursors are written; or the subscription had not come back from it yet."""
    for fault in history.faults:
        index = bisect.bisect(moments, fault.settled_s)
        back_s = moments[index] if index < len(moments) else fault.settled_s
        earliest_s, latest_s = fault.start_s - UNFLUSHED_S - history.slack_s, back_s + history.slack_s
        if earliest_s <= acked_s <= latest_s and again_s >= fault.start_s:
            return True
    return False


def left_over(history: History) -> Iterator[str]:
    """P5 and P6: where the cursors stand at the end: exactly what was never acknowledged is still to come."""
    done = {(each.subscription, each.stream, each.place) for each in history.consumed}
    for subscription, streams in history.subscriptions.items():
        left = set(history.left.get(subscription, []))
        for stream in streams:
            for place, message in history.logs.get(stream, []):
                open_ = (subscription, stream, place) not in done
                if open_ != ((stream, place) in left):
                    wrong = "is not given again" if open_ else "is given again at the end"
                    yield f"{subscription}: {message} at {stream} {place} {wrong}"
