"""A scope ends with all of its work, also with work that is started while it ends."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.base.tasks import TaskScope


async def test_work_started_while_the_scope_ends_does_not_keep_it_open() -> None:
    started: list[str] = []

    async def late() -> None:
        started.append("late")
        await asyncio.Event().wait()

    async def stubborn(scope: TaskScope) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            scope.spawn(late(), "late")
            await asyncio.sleep(0)

    async with asyncio.timeout(5):
        async with TaskScope("test") as scope:
            scope.spawn(stubborn(scope), "stubborn")
            await asyncio.sleep(0)
    assert started == []


async def test_an_ended_scope_takes_no_work() -> None:
    async with TaskScope("test") as scope:
        pass
    work = asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        scope.spawn(work, "too late")
