"""Heavy requests take turns, by caller, and leave the loop to others."""

from __future__ import annotations

import asyncio
from time import perf_counter

import pytest

from magnetar.admin import pacing
from magnetar.admin.pacing import SLICE_S, WAITING_MAX, Pace, Workload
from magnetar.broker.errors import TooManyRequestsError


async def test_one_at_a_time_of_each_caller_and_others_beside_it() -> None:
    workload = Workload()
    order: list[str] = []

    async def heavy(who: str, name: str) -> None:
        async with workload.turn(who):
            order.append(f"{name} begins")
            await asyncio.sleep(0.01)
            order.append(f"{name} ends")

    await asyncio.gather(heavy("a", "first"), heavy("a", "second"), heavy("b", "other"))
    assert order.index("first ends") < order.index("second begins")
    assert order.index("other begins") < order.index("first ends")


async def test_too_many_of_one_caller_are_refused_and_nobody_else() -> None:
    workload = Workload()
    async with asyncio.timeout(60), workload.turn("a"):
        waiting = [asyncio.ensure_future(_enter(workload, "a")) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequestsError, match="wait for their answers"):
            await _enter(workload, "a")
        await _enter(workload, "b")
    await asyncio.gather(*waiting)
    await _enter(workload, "a")


async def test_who_waits_for_too_long_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "TURN_TIMEOUT_S", 0.01)
    workload = Workload()
    async with workload.turn("a"):
        with pytest.raises(TooManyRequestsError, match="try again"):
            await _enter(workload, "a")
    await _enter(workload, "a")


async def _enter(workload: Workload, who: str) -> None:
    async with workload.turn(who):
        pass


def test_all_together_take_half_of_the_time_at_most() -> None:
    workload = Workload()
    now_s = 0.0
    ends = [workload.reserve(now_s, 0.002) for _ in range(5)]
    assert ends == pytest.approx([0.002, 0.004, 0.006, 0.008, 0.010])
    assert workload.reserve(1.0, 0.002) == pytest.approx(1.002)


async def test_work_of_a_slice_is_followed_by_a_pause() -> None:
    pace = Pace(Workload())
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    try:
        await pace.breathe()
        assert turns == 0, "nothing was done yet"
        until_s = perf_counter() + SLICE_S
        while perf_counter() < until_s:
            pass
        await pace.breathe()
        assert turns > 1
    finally:
        task.cancel()
