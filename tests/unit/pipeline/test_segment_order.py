"""Reading the segments of a scalable topic: each message once, a key's in order, whatever splits, merges and deletions come between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.scalable.layout import SegmentLayout
from magnetar.client.scalable.layout import Layout, Segment
from magnetar.pipeline.connect.offsets import EARLIEST, Offsets, Position, ranges
from magnetar.pipeline.connect.segment_order import begin, outside, released, unproven, with_children, without_gone

TOPIC = "topic://public/default/t"
KEYS = range(0, 0x10000, 0x1555)


class Model:
    """A topic whose segments hold (key, number): `log[name]` is what was written, in order."""

    def __init__(self) -> None:
        self.layout = SegmentLayout.create(2, 0)
        self.log: dict[str, list[tuple[int, int]]] = {}
        self.number = 0

    def seen(self) -> Layout:
        segments = {
            each.id: Segment(
                each.id,
                each.start,
                each.end,
                each.active,
                each.parents,
                f"segment://public/default/t/{each.descriptor}",
            )
            for each in self.layout.segments.values()
        }
        return Layout(TOPIC, self.layout.epoch, segments)

    def write(self, count: int) -> None:
        for _ in range(count):
            for key in KEYS:
                name = f"segment://public/default/t/{self.layout.at(key).descriptor}"
                self.log.setdefault(name, []).append((key, self.number))
            self.number += 1

    def change(self, choice: int) -> None:
        active = self.layout.active
        place = choice % len(active)
        if choice % 3 and len(active) > 1 and place + 1 < len(active):
            self.layout = self.layout.merge(active[place].id, active[place + 1].id, 0)
        else:
            self.layout = self.layout.split(active[place].id, 0)

    def end(self, name: str) -> Position:
        found = len(self.log.get(name, []))
        return Position(0, found) if found else EARLIEST

    def read(self, starts: Offsets, ends: Offsets) -> list[list[tuple[int, int]]]:
        """By segment: a micro-batch reads them side by side."""
        return [self.log[each.topic][max(each.start.entry, 0) : each.end.entry] for each in ranges(starts, ends)]


def limited(starts: Offsets, ends: Offsets, rows: int) -> Offsets:
    """At most so many of each segment."""
    found = {}
    for name, end in ends.items():
        start = starts.get(name, EARLIEST)
        at = Position(0, max(start.entry, 0) + rows)
        found[name] = min(end, at) if end > start else end
    return found


@given(
    st.lists(st.tuples(st.sampled_from(["write", "change", "read", "drop"]), st.integers(0, 1000)), max_size=40),
    st.integers(1, 5),
)
def test_each_message_is_read_once_and_in_the_order_of_its_key(steps: list[tuple[str, int]], rows: int) -> None:
    model = Model()
    offsets = begin(model.seen(), {}, lambda _: EARLIEST, model.end)
    seen: dict[int, list[int]] = {key: [] for key in KEYS}

    def read_batch() -> bool:
        nonlocal offsets
        layout = model.seen()
        assert not unproven(layout, offsets)
        ends = limited(offsets, offsets | released(layout, offsets, model.end), rows)
        found = model.read(offsets, ends)
        owners = [{key for key, _ in part} for part in found]
        assert sum(map(len, owners)) == len(set().union(*owners)), "a key is read in two segments at a time"
        for key, number in (each for part in found for each in part):
            seen[key].append(number)
        offsets = with_children(layout, without_gone(layout, ends), model.end)
        return any(found)

    for what, number in steps:
        if what == "write":
            model.write(number % 4)
        elif what == "change":
            model.change(number)
        elif what == "read":
            read_batch()
        else:
            # A topic deletes a sealed segment once all of it was read, together with the other parents of its children: a query that was
            # started anew finds what it had finished still there while a child waits, or that child in its offsets.
            layout = model.seen()
            done = [
                each.id
                for each in layout.segments.values()
                if offsets.get(each.topic, EARLIEST) >= model.end(each.topic)
            ]
            gone = [
                each.id
                for each in model.layout.removable([each for each in done if layout.segments[each].topic in offsets])
            ]
            if gone:
                offsets = with_children(layout, offsets, model.end)
                model.layout = model.layout.without(gone)
    while True:
        before = dict(offsets)
        if not read_batch() and offsets == before:
            break
    assert seen == {key: list(range(model.number)) for key in KEYS}


def test_a_named_segment_stands_for_its_ancestors_and_withholds_its_descendants() -> None:
    model = Model()
    model.write(3)
    model.change(0)  # 0 becomes 2 and 3
    model.write(3)
    layout = model.seen()
    name = {number: each.topic for number, each in layout.segments.items()}
    at = begin(layout, {name[2]: Position(0, 1)}, lambda _: EARLIEST, model.end)
    assert at == {name[2]: Position(0, 1), name[1]: EARLIEST, name[3]: EARLIEST}
    assert name[0] not in released(layout, at, model.end)
    latest = begin(layout, {}, model.end, model.end)
    assert latest == {each: model.end(each) for each in name.values()}
    assert outside(layout, [name[2]], []) == {name[0]}
    assert outside(layout, [], [name[0]]) == {name[2], name[3]}


def test_a_segment_that_is_gone_before_its_children_were_begun_is_not_taken_for_read() -> None:
    model = Model()
    model.write(2)
    layout = model.seen()
    read = {each.topic: Position(0, 1) for each in layout.segments.values()}
    model.change(0)
    model.layout = model.layout.without([0])
    (gone,) = unproven(model.seen(), read)
    assert gone == layout.segments[0].topic
    child = model.seen().segments[2].topic
    assert unproven(model.seen(), read | {child: EARLIEST}) == []
    assert unproven(model.seen(), {"persistent://public/default/t-partition-0": EARLIEST, child: EARLIEST}) == []
    assert unproven(model.seen(), {"persistent://public/default/t-partition-0": EARLIEST})
