"""Why a dispatcher hands out nothing, or not to everybody: asked on request, answered from the state that decides. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from magnetar.broker.dispatch.lanes import Lane, Lanes, Parking
from magnetar.broker.dispatch.position_key import position_of
from magnetar.broker.dispatch.receiver import HELD_SLOT_MASK, Receiver
from magnetar.broker.dispatch.redelivery import RedeliveryCounts
from magnetar.broker.dispatch.waiting import SLOT_BITS, SLOT_MASK
from magnetar.broker.reasons import Code, Named, Reason, because

CONSUMERS_NAMED_MAX: Final = 20
"""Consumers that one answer has a reason for; the others are only counted."""

KEYS_SHOWN_MAX: Final = 5
"""Waiting entries whose keys are shown as examples."""

SLOTS_SHOWN_MAX: Final = 10

REDELIVERIES_MANY: Final = 3
"""A message that has come back so often is worth a word."""

SAMPLED_MAX: Final = 1000
"""Waiting entries of each consumer by which skew is judged."""

SKEW_WAITING_MIN: Final = 20
SKEW_PERCENT_MIN: Final = 50
"""At least so many waiting entries, and so large a part of them of one slot, are a skew."""

SLOT_MAX: Final = (1 << SLOT_BITS) - 1


def held_up(consumer: Receiver) -> Reason | None:
    """Why this consumer can be sent nothing; None if it can."""
    if consumer.blocked_on_unacked:
        return because(
            Code.UNACKED_LIMIT_CONSUMER,
            consumer.last_consumed_ms,
            **consumer.described(),
            unacked=consumer.unacked_messages,
            limit=consumer.max_unacked,
            resumes_at=consumer.max_unacked // 2,
        )
    if consumer.permits <= 0:
        return because(Code.NO_PERMITS, consumer.last_consumed_ms, **consumer.described(), permits=consumer.permits)
    if not consumer.channel.writable:
        return because(Code.SOCKET_FULL, consumer.last_consumed_ms, **consumer.described())
    return None


def those_held_up(consumers: Iterable[Receiver]) -> list[Reason]:
    """The reasons of those that can be sent nothing, longest first, at most CONSUMERS_NAMED_MAX."""
    found = [reason for reason in map(held_up, consumers) if reason is not None]
    found.sort(key=lambda reason: reason.since_ms)
    return found[:CONSUMERS_NAMED_MAX]


def unacked_limit(consumers: Sequence[Receiver], unacked: int, limit: int) -> Reason:
    """The subscription as a whole waits for acknowledgements."""
    holders = sorted(consumers, key=lambda consumer: -consumer.unacked_messages)[:CONSUMERS_NAMED_MAX]
    return because(
        Code.UNACKED_LIMIT_SUBSCRIPTION,
        max((consumer.last_consumed_ms for consumer in consumers), default=0),
        unacked=unacked,
        limit=limit,
        resumes_at=limit // 2,
        holders=Named({consumer.name: consumer.unacked_messages for consumer in holders if consumer.unacked_messages}),
    )


def redelivered(counts: RedeliveryCounts) -> list[Reason]:
    """The message that came back most often, if that is often."""
    if not counts.by_key:
        return []
    key, times = max(counts.by_key.items(), key=lambda item: (item[1], -item[0]))
    if times < REDELIVERIES_MANY:
        return []
    often = sum(count >= REDELIVERIES_MANY for count in counts.by_key.values())
    place = position_of(key)
    shown = f"{place.ledger_id}:{place.entry_id}"
    return [because(Code.REDELIVERED_OFTEN, message=shown, times=times, messages=often, keys_at=[key])]


# ---- Key_Shared


def of_lanes(lanes: Lanes) -> list[Reason]:
    """What waits for one consumer, one slot or nobody while the others go on."""
    stuck = [lane for lane in lanes.all if not lane.can_take and (lane.waiting or lane.skipped)]
    stuck.sort(key=lambda lane: lane.consumer.last_consumed_ms)
    frozen = [reason for lane in stuck[:CONSUMERS_NAMED_MAX] for reason in _frozen(lanes, lane)]
    return [*frozen, *_draining(lanes, sorted(lanes.draining)), *_uncovered(lanes), *_skew(lanes)]


def _skew(lanes: Lanes) -> Iterator[Reason]:
    """The slot that most of what waits is of, as far as a sample of each consumer's waiting entries tells."""
    seen: Counter[int] = Counter()
    first: dict[int, int] = {}
    for lane in lanes.all:
        for packed in islice(lane.waiting, SAMPLED_MAX):
            slot = packed & SLOT_MASK
            seen[slot] += 1
            first.setdefault(slot, packed >> SLOT_BITS)
    waiting = seen.total()
    if waiting < SKEW_WAITING_MIN:
        return
    ((slot, most),) = seen.most_common(1)
    lane_of_it = lanes.owner(slot)
    if most * 100 < waiting * SKEW_PERCENT_MIN or lane_of_it is None:
        return
    yield because(
        Code.KEY_SKEWED,
        keys_at=[first[slot]],
        percent=round(100 * most / waiting),
        slot=slot,
        waiting=waiting,
        **lane_of_it.consumer.described(),
    )


def of_slot(lanes: Lanes, slot: int) -> list[Reason]:
    """What entries of one slot wait for; nothing if its owner can take them."""
    if slot in lanes.draining:
        return list(_draining(lanes, [slot]))
    lane = lanes.owner(slot)
    if lane is None:
        return list(_uncovered(lanes, whatever_waits=True))
    return [] if lane.can_take else _frozen(lanes, lane)


def held_in(consumer: Receiver, slot: int) -> int:
    """Entries of a slot that it holds."""
    return sum(value & HELD_SLOT_MASK == slot for value in consumer.held.values())


def waiting_in(lanes: Lanes, slot: int) -> int:
    """Entries of a slot that are remembered as waiting."""
    return sum(packed & SLOT_MASK == slot for packed in lanes.parking(slot).waiting)


def owned_by(lanes: Lanes, slot: int) -> str:
    """The range of its owner that a slot lies in."""
    lane = lanes.owner(slot)
    ranges = lanes.ranges_of(lane.consumer) if lane is not None else []
    return next((f"the range {start}-{end}" for start, end in ranges if start <= slot <= end), "nothing")


def _frozen(lanes: Lanes, lane: Lane) -> list[Reason]:
    """Its state, and the cause of that."""
    cause = held_up(lane.consumer)
    if cause is None:
        return []
    frozen = because(
        Code.CONSUMER_FROZEN,
        lane.consumer.last_consumed_ms,
        some_waiting(lane),
        **lane.consumer.described(),
        waiting=len(lane.waiting),
        more=bool(lane.skipped),
        unacked=lane.consumer.unacked_messages,
        slots=sum(end - start + 1 for start, end in lanes.ranges_of(lane.consumer)),
        cause=str(cause.code),
    )
    return [frozen, cause]


def some_waiting(parking: Parking) -> list[int]:
    """Position keys of a few of the entries that wait there."""
    return [packed >> SLOT_BITS for packed in islice(parking.waiting, KEYS_SHOWN_MAX)]


def _draining(lanes: Lanes, draining_slots: Sequence[int]) -> Iterator[Reason]:
    """One reason for each pair of former and new owner."""
    if not draining_slots:
        return
    holders: dict[int, Lane] = {}
    for lane in lanes.all:
        for value in lane.consumer.held.values():
            if value & HELD_SLOT_MASK in lanes.draining:
                holders[value & HELD_SLOT_MASK] = lane
    pairs: dict[tuple[str, str], list[int]] = {}
    members: dict[str, Lane] = {lane.member: lane for lane in lanes.all}
    for slot in draining_slots:
        holder, owner = holders.get(slot), lanes.owner(slot)
        pair = (holder.member if holder else "", owner.member if owner else "")
        pairs.setdefault(pair, []).append(slot)
    for (holder_name, owner_name), slots in islice(pairs.items(), CONSUMERS_NAMED_MAX):
        holding, owning = members.get(holder_name), members.get(owner_name)
        found = [lanes.draining[slot] for slot in slots]
        yield because(
            Code.SLOT_DRAINING,
            holding.consumer.last_consumed_ms if holding else 0,
            [key for draining in found for key in some_waiting(draining)][:KEYS_SHOWN_MAX],
            holder=holding.consumer.name if holding else "nobody",
            owner=owning.consumer.name if owning else "nobody",
            slots=len(slots),
            slot_numbers=slots[:SLOTS_SHOWN_MAX],
            held=sum(draining.remaining for draining in found),
            waiting=sum(len(draining.waiting) for draining in found),
        )


def gaps(lanes: Lanes) -> list[tuple[int, int]]:
    """Stretches of slots that nobody owns, as inclusive pairs."""
    starts, owners = lanes.table
    ends = [*(start - 1 for start in starts[1:]), SLOT_MAX]
    pairs = zip(starts, ends, owners, strict=True)
    return [(start, end) for start, end, owner in pairs if owner is None and start <= end]


def _uncovered(lanes: Lanes, *, whatever_waits: bool = False) -> Iterator[Reason]:
    if not lanes.all or not (whatever_waits or lanes.unowned.waiting or lanes.unowned.skipped):
        return
    yield because(
        Code.RANGE_UNCOVERED,
        keys_at=some_waiting(lanes.unowned),
        ranges=[f"{start}-{end}" for start, end in gaps(lanes)][:SLOTS_SHOWN_MAX],
        waiting=len(lanes.unowned.waiting),
        more=bool(lanes.unowned.skipped),
    )
