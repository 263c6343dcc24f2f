"""Several sessions over one tree, and what can happen to each."""

from __future__ import annotations

import pytest

from magnetar.metadata.errors import MetadataConnectionError
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.metadata.store import RESYNC, SessionEvent

LOST, BACK = SessionEvent.CONNECTION_LOST, SessionEvent.RECONNECTED
GONE, NEW = SessionEvent.SESSION_LOST, SessionEvent.SESSION_REESTABLISHED


def two() -> tuple[MemoryMetadataStore, MemoryMetadataStore, list[SessionEvent], list[str]]:
    tree = MemoryTree()
    first, second = MemoryMetadataStore(tree), MemoryMetadataStore(tree)
    events: list[SessionEvent] = []
    heard: list[str] = []
    first.on_session(events.append)
    first.watch(heard.append)
    return first, second, events, heard


async def test_sessions_share_the_tree_and_own_their_ephemeral_nodes() -> None:
    first, second, events, heard = two()
    await second.put("/mine", b"", ephemeral=True)
    assert await first.exists("/mine")
    await second.close()
    assert heard == ["/mine", "/mine"]
    assert not await first.exists("/mine")
    assert events == []


async def test_an_interruption_ends_with_the_same_session_and_a_resync() -> None:
    first, second, events, heard = two()
    await first.put("/e", b"", ephemeral=True)
    first.disconnect()
    first.disconnect()
    with pytest.raises(MetadataConnectionError):
        await first.get("/e")
    await second.put("/missed", b"")
    session = first.session_id
    first.reconnect()
    first.reconnect()
    assert events == [LOST, BACK]
    assert heard == ["/e", RESYNC]
    assert first.session_id == session
    assert await second.exists("/e")


async def test_expiry_while_connected() -> None:
    first, second, events, heard = two()
    await first.put("/e", b"", ephemeral=True)
    session = first.session_id
    first.expire_session()
    assert events == [GONE, NEW]
    assert heard[-1] == RESYNC
    assert first.session_id != session
    assert not await second.exists("/e")


async def test_expiry_while_cut_off_is_learned_afterwards() -> None:
    first, second, events, _ = two()
    await first.put("/e", b"", ephemeral=True)
    first.disconnect()
    first.expire_session()
    assert not await second.exists("/e")
    assert events == [LOST]
    first.reconnect()
    assert events == [LOST, GONE, NEW]


async def test_a_session_that_its_owner_gave_up_is_not_taken_up_again() -> None:
    first, second, events, _ = two()
    await first.put("/e", b"", ephemeral=True)
    first.disconnect()
    first.give_up_session()
    assert events == [LOST, GONE]
    assert await second.exists("/e")
    first.reconnect()
    assert events == [LOST, GONE, NEW]
    assert not await second.exists("/e")


async def test_a_dead_process_leaves_its_nodes_until_its_session_ends() -> None:
    first, second, events, heard = two()
    await first.put("/e", b"", ephemeral=True)
    first.abandon()
    assert await second.exists("/e")
    first.expire_session()
    assert not await second.exists("/e")
    assert events == []
    assert heard == ["/e"]
