"""One leader at a time, on every store that several sessions can share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from magnetar.metadata.election import VoteElection
from tests.contract.metadata.worlds import World

PREFIX = "/underreplication/auditorelection/V_"


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def test_the_first_leads_and_the_next_follows_when_it_leaves(shared: World) -> None:
    other = await shared.other()
    changes: list[bool] = []
    async with AsyncExitStack() as leaving:
        first = await leaving.enter_async_context(VoteElection(shared.store, PREFIX, b"one", changes.append))
        await first.wait_elected()
        async with VoteElection(other, PREFIX, b"two") as second:
            assert await second.leader() == b"one"
            assert not second.is_leader
            await leaving.aclose()
            await second.wait_elected()
            assert changes == [True, False]
            assert await second.leader() == b"two"
    assert await shared.store.children("/underreplication/auditorelection") == []


async def test_a_lost_session_costs_the_lead_and_another_vote_follows(shared: World) -> None:
    other = await shared.other()
    changes: list[bool] = []
    async with VoteElection(shared.store, PREFIX, b"one", changes.append) as first:
        await first.wait_elected()
        async with VoteElection(other, PREFIX, b"two") as second:
            while len(await other.children("/underreplication/auditorelection")) < 2:
                await asyncio.sleep(0.005)
            await shared.expire(shared.store)
            await second.wait_elected()
            await until(lambda: not first.is_leader)
            while len(await other.children("/underreplication/auditorelection")) < 2:
                await asyncio.sleep(0.005)
            assert changes == [True, False]
        await first.wait_elected()
        assert changes == [True, False, True]


async def test_two_of_one_process_vote_apart(shared: World) -> None:
    async with (
        VoteElection(shared.store, PREFIX, b"one") as first,
        VoteElection(shared.store, PREFIX, b"two") as second,
    ):
        await until(lambda: first.is_leader or second.is_leader)
        while len(await shared.store.children("/underreplication/auditorelection")) < 2:
            await asyncio.sleep(0.005)
        assert first.is_leader != second.is_leader


class Stop(Exception):
    pass


async def test_the_bodys_error_keeps_its_class(shared: World) -> None:
    with pytest.raises(Stop):
        async with VoteElection(shared.store, PREFIX, b"one"):
            raise Stop
    assert await shared.store.children("/underreplication/auditorelection") == []
