"""The pure parts of the metadata server: who hears of what, which sessions are over, what bytes mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.metadata.server.jute import MalformedRequestError, Reader, pack_int, pack_string
from magnetar.metadata.server.requests import read_connect, read_request
from magnetar.metadata.server.sessions import Session, Sessions
from magnetar.metadata.server.watches import CHILDREN_CHANGED, Kind, Watches
from magnetar.metadata.sqlite_tree import Change


def test_one_shot_watches_are_spent_and_persistent_ones_stay() -> None:
    watches = Watches()
    watches.add(Kind.DATA, "/a", 1)
    watches.add(Kind.PERSISTENT, "/a", 2)
    watches.add(Kind.RECURSIVE, "/", 3)
    assert watches.fire(Change.WRITTEN, "/a") == [(1, 3, "/a"), (2, 3, "/a"), (3, 3, "/a")]
    assert watches.fire(Change.WRITTEN, "/a") == [(2, 3, "/a"), (3, 3, "/a")]
    assert len(watches) == 2


def test_a_watcher_hears_of_an_event_once() -> None:
    watches = Watches()
    for kind in Kind:
        watches.add(kind, "/a", 1)
    watches.add(Kind.RECURSIVE, "/", 1)
    watches.add(Kind.CHILDREN, "/", 1)
    assert watches.fire(Change.DELETED, "/a") == [(1, 2, "/a"), (1, CHILDREN_CHANGED, "/")]


def test_children_are_told_to_the_parents_watchers_and_only_one_level() -> None:
    watches = Watches()
    watches.add(Kind.CHILDREN, "/a", 1)
    watches.add(Kind.PERSISTENT, "/a", 2)
    watches.add(Kind.RECURSIVE, "/a", 3)
    assert watches.fire(Change.CREATED, "/a/b/c") == [(3, 1, "/a/b/c")]
    assert watches.fire(Change.CREATED, "/a/b") == [(3, 1, "/a/b"), (1, 4, "/a"), (2, 4, "/a")]
    assert watches.fire(Change.WRITTEN, "/a/b") == [(3, 3, "/a/b")]
    assert watches.fire(Change.CREATED, "/ab") == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(Kind)), st.sampled_from(["/", "/a", "/a/b"]), st.integers(1, 3), st.sampled_from("arf")
        )
    )
)
def test_watches_are_what_was_added_less_what_was_removed(steps: list[tuple[Kind, str, int, str]]) -> None:
    watches, model = Watches(), set[tuple[Kind, str, int]]()
    for kind, path, watcher, action in steps:
        if action == "a":
            watches.add(kind, path, watcher)
            model.add((kind, path, watcher))
        elif action == "r":
            assert watches.remove(kind, path, watcher) == ((kind, path, watcher) in model)
            model.discard((kind, path, watcher))
        else:
            watches.forget(watcher)
            model = {one for one in model if one[2] != watcher}
        assert len(watches) == len(model)
        assert all(watches.has(*one) for one in model)


def test_sessions_end_after_their_time_and_not_because_the_server_stood_still() -> None:
    sessions = Sessions(1.0, 60.0)
    assert [sessions.timeout_s(ms) for ms in (10, 5_000, 600_000)] == [1.0, 5.0, 60.0]
    short, long = Session(11, b"p", 1.0, 0.0), Session(12, b"q", 5.0, 0.0)
    sessions.add(short)
    sessions.add(long)
    assert sessions.expired(0.5, 0.25) == []
    assert sessions.take_up(11, b"wrong") is None
    assert sessions.take_up(11, b"p") is short
    assert sessions.expired(100.0, 0.25) == []
    assert sessions.expired(100.25, 0.25) == []
    assert sessions.expired(100.8, 0.25) == [short]
    assert sessions.take_up(11, b"p") is None
    assert sessions.get(12) is long


@given(st.binary(max_size=80))
def test_any_bytes_are_a_request_or_malformed(data: bytes) -> None:
    for read in (read_request, read_connect):
        try:
            read(data)
        except MalformedRequestError:
            continue


@given(st.lists(st.text(max_size=5).filter(lambda text: text.isprintable()), max_size=5))
def test_strings_come_back(values: list[str]) -> None:
    reader = Reader(pack_int(len(values)) + b"".join(map(pack_string, values)) + pack_string("end"))
    assert reader.strings() == values
    assert reader.string() == "end"
    with pytest.raises(MalformedRequestError):
        reader.int32()
