"""Runs of adds of a channel to a bookie: in whatever order and pieces their answers come, each run is answered once, and rightly."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.base.clock import SystemClock
from magnetar.base.network import Network
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.client.channel.lane import Environment
from magnetar.bookkeeper.client.channel.options import ChannelOptions
from magnetar.bookkeeper.client.channel.v2 import V2Requests
from magnetar.bookkeeper.codes import BOOKIE_TIMEOUT, BOOKIE_UNAVAILABLE, FLAG_HIGH_PRIORITY
from magnetar.wire.bookkeeper import v2
from magnetar.wire.bookkeeper.frames import FrameCutter

KEY = b"k" * 20
ADD_HEADER = v2.response_header(v2.request_header(v2.ADD, 0))
READ_HEADER = v2.response_header(v2.request_header(v2.READ, 0))

runs_of_adds = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 5), st.sampled_from([(1,), (1,), (1, 2), (1, 1, 2), (4,)])),
    min_size=1,
    max_size=8,
)
"""Of a ledger: so many entries, whose ids ascend by these steps in turn."""


def channel() -> V2Requests:
    environment = Environment(
        cast("Network", None), SystemClock(), random.Random(1), cast("TaskScope", None), ChannelOptions()
    )
    requests = V2Requests(("bookie", 1), environment)
    sent = SimpleNamespace(up=True, ticks=0, write=lambda *pieces: None, write_pieces=lambda pieces: None)
    sent.drop = lambda error: None
    requests.lane = cast("Any", sent)
    return requests


def answer(header: int, ledger_id: int, entry_id: int, code: int) -> bytes:
    return v2.encode_response(v2.RESPONSE_HEAD_BYTES, header, code, ledger_id, entry_id)


class Asked:
    """What was sent, and what came of it."""

    def __init__(self, requests: V2Requests) -> None:
        self.requests = requests
        self.next_of: dict[int, int] = {}
        self.answers: list[tuple[int, int, int, int]] = []
        """(header, ledger, entry, number of the run; -1: a read's)"""
        self.codes: list[list[int]] = []

    def add(self, ledger_id: int, count: int, steps: tuple[int, ...]) -> None:
        entry_id, ids = self.next_of.get(ledger_id, 0), []
        for number in range(count):
            ids.append(entry_id)
            entry_id += steps[number % len(steps)]
        self.next_of[ledger_id] = entry_id
        codes: list[int] = []
        self.answers += [(ADD_HEADER, ledger_id, one, len(self.codes)) for one in ids]
        self.codes.append(codes)
        entries = [b"e" * (30 + one % 2) for one in ids]
        self.requests.add_run(ledger_id, ids, entries, KEY, FLAG_HIGH_PRIORITY, codes.append)

    def read(self, ledger_id: int) -> None:
        codes: list[int] = []
        entry_id = self.next_of.get(ledger_id, 0)
        if (READ_HEADER, ledger_id, entry_id, -1) in self.answers:
            return
        self.answers.append((READ_HEADER, ledger_id, entry_id, -1))
        self.requests.read_entry(ledger_id, entry_id, 0, b"", lambda code, entry: codes.append(code))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), runs=runs_of_adds, reads=st.lists(st.integers(1, 3), max_size=3), late=st.booleans())
def test_each_run_is_answered_once_by_the_worst_of_its_entries(
    data: st.DataObject, runs: list[tuple[int, int, tuple[int, ...]]], reads: list[int], late: bool
) -> None:
    requests = channel()
    asked = Asked(requests)
    for number, run in enumerate(runs):
        asked.add(*run)
        if number < len(reads):
            asked.read(reads[number])
    assert requests.pending_count == len(asked.answers)
    order = list(asked.answers)
    for place in data.draw(st.lists(st.integers(0, len(order) - 1), max_size=3), label="answered early"):
        order.insert(0, order.pop(place))
    failed = data.draw(st.dictionaries(st.integers(0, len(order) - 1), st.just(101), max_size=2), label="failed")
    frames = [answer(*one[:3], failed.get(place, 0)) for place, one in enumerate(order)]
    timed_out = data.draw(st.integers(0, len(frames)), label="sweep after") if late else len(frames)
    cutter = FrameCutter()
    came = b"".join(frames)
    cuts = {*data.draw(st.sets(st.integers(0, len(came)), max_size=5), label="cuts"), 28 * timed_out, len(came)}
    start = 0
    for cut in sorted(cuts):
        requests.receive(cutter.feed(came[start:cut], requests.take) if start < cut else [])
        start = cut
        if late and cut == 28 * timed_out:
            requests.sweep(1000)
    assert requests.pending_count == requests.pending_bytes == 0
    for number, codes in enumerate(asked.codes):
        places = [place for place, one in enumerate(order) if one[3] == number]
        expected = {failed.get(place, 0) if place < timed_out else BOOKIE_TIMEOUT for place in places}
        assert len(codes) == 1
        assert codes[0] in expected
        assert bool(codes[0]) == bool(expected - {0})


@given(runs=runs_of_adds, answered=st.integers(0, 40))
def test_a_lost_connection_fails_every_run_that_is_not_answered(
    runs: list[tuple[int, int, tuple[int, ...]]], answered: int
) -> None:
    requests = channel()
    asked = Asked(requests)
    for run in runs:
        asked.add(*run)
    came = b"".join(answer(*one[:3], 0) for one in asked.answers[:answered])
    requests.receive(FrameCutter().feed(came, requests.take))
    requests.lost()
    assert requests.pending_count == requests.pending_bytes == 0
    for number, codes in enumerate(asked.codes):
        whole = all(place < answered for place, one in enumerate(asked.answers) if one[3] == number)
        assert codes == [0 if whole else BOOKIE_UNAVAILABLE]


@given(runs=runs_of_adds, again=st.integers(0, 7))
def test_an_entry_that_is_sent_again_waits_for_the_answer_to_the_first(
    runs: list[tuple[int, int, tuple[int, ...]]], again: int
) -> None:
    requests = channel()
    asked = Asked(requests)
    for run in runs:
        asked.add(*run)
    _, ledger_id, entry_id, _ = asked.answers[again % len(asked.answers)]
    codes: list[int] = []
    requests.add_run(ledger_id, [entry_id, entry_id + 1], [b"e" * 30] * 2, KEY, 0, codes.append)
    came = b"".join(answer(*one[:3], 0) for one in asked.answers)
    requests.receive(FrameCutter().feed(came, requests.take))
    assert all(one == [0] for one in asked.codes)
    assert not codes
    requests.receive(FrameCutter().feed(answer(ADD_HEADER, ledger_id, entry_id, 0), requests.take))
    if requests.pending_count:
        requests.receive(FrameCutter().feed(answer(ADD_HEADER, ledger_id, entry_id + 1, 0), requests.take))
    assert codes == [0]
    assert requests.pending_count == requests.pending_bytes == 0
