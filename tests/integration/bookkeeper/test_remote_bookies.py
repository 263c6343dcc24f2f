"""The directory follows the registrations: channels appear, change lists, move, and outlive a lost registration."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from magnetar.base.clock import SystemClock
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.channel.options import ChannelOptions
from magnetar.bookkeeper.client.remote_bookies import RemoteBookies
from magnetar.bookkeeper.codes import BOOKIE_UNAVAILABLE, ReturnCode
from magnetar.bookkeeper.registration import BookieRegistration
from magnetar.bookkeeper.service_info import service_info
from magnetar.metadata.memory import MemoryMetadataStore
from tests.integration.bookkeeper.remote import NETWORK, Served, answer, serve, served_bookie
from tests.unit.bookkeeper.bookie_helpers import KEY, entry, eventually

OPTIONS = ChannelOptions(retry_min_s=0.001, retry_max_s=0.01)


def registered(store: MemoryMetadataStore, served: Served, bookie_id: str = "b0") -> BookieRegistration:
    return BookieRegistration(store, bookie_id, service_info("127.0.0.1", served.port))


@contextlib.asynccontextmanager
async def following(store: MemoryMetadataStore, **more: Any) -> AsyncIterator[tuple[BookieDirectory, RemoteBookies]]:
    directory = BookieDirectory()
    async with RemoteBookies(store, directory, NETWORK, SystemClock(), random.Random(7), OPTIONS, **more) as remote:
        yield directory, remote


async def add(directory: BookieDirectory, entry_id: int, bookie_id: str = "b0") -> int:
    channel = directory.channel(bookie_id)
    return int(await answer(channel.add_entry, 7, entry_id, entry(7, entry_id), KEY, 0))


async def test_bookies_come_and_change_lists(tmp_path: Path) -> None:
    store = MemoryMetadataStore()
    async with served_bookie(tmp_path) as served, registered(store, served) as registration, following(store) as both:
        directory, _ = both
        assert directory.writable() == ["b0"], "those registered before are there at once"
        assert await add(directory, 0) == ReturnCode.OK
        registration.set_read_only(True)
        await eventually(lambda: directory.writable() == [], "the bookie is read-only")
        assert directory.read_only() == ["b0"]
        assert await answer(directory.channel("b0").read_entry, 7, 0, 0, b"") == (ReturnCode.OK, entry(7, 0))
        async with registered(store, served, "b1"):
            await eventually(lambda: directory.writable() == ["b1"], "another one appears")


async def test_a_lost_registration_does_not_cut_off_the_ledgers_that_have_the_bookie(tmp_path: Path) -> None:
    store = MemoryMetadataStore()
    async with served_bookie(tmp_path) as served, following(store) as (directory, remote):
        async with registered(store, served):
            await eventually(lambda: directory.writable() == ["b0"], "registered")
            assert await add(directory, 0) == ReturnCode.OK
            channel = remote.channels["b0"]
        await eventually(lambda: directory.writable() == [], "gone from the lists")
        assert await add(directory, 1) == ReturnCode.OK, "its connection goes on"
        await served.server.close()
        await eventually(lambda: not channel.connected, "the connection is lost")
        async with serve(served.bookie, served.port):
            assert await add(directory, 2) == BOOKIE_UNAVAILABLE, "nobody connects to a bookie that is not registered"
            async with registered(store, served):
                await eventually(lambda: directory.writable() == ["b0"], "back")
                assert await add(directory, 2) == ReturnCode.OK
                assert remote.channels["b0"] is channel


async def test_a_bookie_that_nobody_talked_to_leaves_without_a_trace(tmp_path: Path) -> None:
    store = MemoryMetadataStore()
    async with served_bookie(tmp_path) as served, following(store) as (directory, remote):
        async with registered(store, served):
            await eventually(lambda: directory.writable() == ["b0"], "registered")
        await eventually(lambda: directory.registered() == [], "gone")
        assert remote.channels == {}
        assert await add(directory, 0) == BOOKIE_UNAVAILABLE


async def test_a_bookie_that_moves_is_found_at_its_new_address(tmp_path: Path) -> None:
    store = MemoryMetadataStore()
    async with served_bookie(tmp_path) as served, following(store) as (directory, remote):
        async with registered(store, served):
            await eventually(lambda: directory.writable() == ["b0"], "registered")
            assert await add(directory, 0) == ReturnCode.OK
        await served.server.close()
        async with serve(served.bookie) as moved, registered(store, moved):

            def is_there() -> bool:
                channel = remote.channels.get("b0")
                return channel is not None and channel.address[1] == moved.port

            await eventually(is_there, "registered anew")
            assert await add(directory, 1) == ReturnCode.OK


async def test_the_bookie_of_this_process_is_left_alone_and_space_is_asked_for(tmp_path: Path) -> None:
    store = MemoryMetadataStore()
    async with (
        served_bookie(tmp_path) as served,
        registered(store, served),
        registered(store, served, "b1"),
        following(store, local={"b0"}, info_interval_s=60.0) as (directory, remote),
    ):
        assert list(remote.channels) == ["b1"]
        assert directory.registered() == ["b1"]

        def free_bytes() -> int:
            return directory.candidates(random.Random(1))[0].free_bytes

        await eventually(lambda: free_bytes() > 0, "the free space is known")


async def test_room_is_known_of_every_bookie_soon_after_it_appeared(tmp_path: Path) -> None:
    store = MemoryMetadataStore()
    rng = random.Random(1)
    async with served_bookie(tmp_path) as served, following(store, info_interval_s=3600.0) as (directory, _):
        code, total, free = await answer(served.bookie.bookie_info)
        assert (code, 0 < free <= total) == (ReturnCode.OK, True)
        async with registered(store, served):
            # not to the byte: others write to this disk as well
            await eventually(
                lambda: [0 < each.free_bytes <= total for each in directory.candidates(rng)] == [True], "its room"
            )
        await eventually(lambda: directory.candidates(rng) == [], "gone")


async def test_room_is_asked_for_again_after_the_interval(tmp_path: Path) -> None:
    store = MemoryMetadataStore()
    rng = random.Random(1)
    async with (
        served_bookie(tmp_path) as served,
        registered(store, served),
        following(store, info_interval_s=0.01) as (directory, _),
    ):
        await eventually(lambda: all(each.free_bytes for each in directory.candidates(rng)), "its room")
        directory.set_free_bytes("b0", 1)
        await eventually(lambda: all(each.free_bytes > 1 for each in directory.candidates(rng)), "its room again")
