"""How many connections a process takes, and who makes room for whom."""

from __future__ import annotations

import resource
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.base.admission import Admission, Share, Ticket, address_of
from magnetar.base.limits import OPEN_FILES_RESERVED


def _extend(found: list[Ticket], box: list[Ticket]) -> None:
    found.extend(box)


STEPS = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "settle", "unsettle"]), st.sampled_from("abc")), max_size=80
)


@given(total_max=st.integers(0, 5), per_address_max=st.integers(0, 3), strangers_max=st.integers(0, 3), steps=STEPS)
def test_never_more_than_allowed_and_never_refused_without_reason(
    total_max: int, per_address_max: int, strangers_max: int, steps: list[tuple[str, str]]
) -> None:
    share = Share("test", total_max, per_address_max, strangers_max=strangers_max)
    held: list[Ticket] = []
    evicted: list[Ticket] = []
    refused = 0
    for step, address in steps:
        own = [ticket for ticket in held if ticket.address == address]
        if step == "enter":
            before = len(evicted)
            box: list[Ticket] = []
            crowd = own if per_address_max and len(own) >= per_address_max else held
            full = (crowd is own and bool(per_address_max and own)) or bool(total_max and len(held) >= total_max)
            answer = share.enter(address, partial(_extend, evicted, box))
            if isinstance(answer, str):
                refused += 1
                assert full
                assert all(ticket.settled for ticket in crowd), "a stranger would have made room"
                continue
            box.append(answer)
            strangers = [ticket for ticket in held if not ticket.settled]
            crowded = bool(strangers_max and len(strangers) >= strangers_max)
            assert len(evicted) - before == int(full or crowded)
            held = [ticket for ticket in held if ticket not in evicted] + [answer]
        elif own and step == "leave":
            own[0].leave()
            held.remove(own[0])
        elif own:
            getattr(own[-1], step)()
        share.validate()
        assert share.total == len(held)
        assert share.strangers_count == sum(not ticket.settled for ticket in held)
        assert not total_max or share.total <= total_max
        assert all(ticket.open for ticket in held)
    assert share.refused_total == refused
    assert share.evicted_total == len(evicted)
    assert not any(ticket.settled for ticket in evicted)


def test_the_address_with_the_most_strangers_makes_room_its_oldest_first() -> None:
    share = Share("test", 4, 0)
    gone: list[str] = []
    entered = {name: share.enter(name[0], partial(gone.append, name)) for name in ("b1", "a1", "a2", "a3")}
    settled = entered["a1"]
    assert isinstance(settled, Ticket)
    settled.settle()
    for name, expected in (("c1", "a2"), ("c2", "b1"), ("c3", "c1")):
        assert isinstance(share.enter(name[0], partial(gone.append, name)), Ticket)
        assert gone[-1] == expected


def test_one_stranger_more_takes_the_place_of_another_while_there_is_room() -> None:
    share = Share("test", 0, 0, strangers_max=3)
    gone: list[str] = []
    entered = [share.enter("a", partial(gone.append, name)) for name in ("a1", "a2", "a3")]
    assert isinstance(entered[0], Ticket)
    entered[0].settle()
    share.enter("b", partial(gone.append, "b1"))
    assert gone == [], "a1 counts no more"
    share.enter("b", partial(gone.append, "b2"))
    share.enter("c", partial(gone.append, "c1"))
    assert gone == ["a2", "b1"], "the one of the address with the most, the longest waiting first"
    assert (share.total, share.strangers_count, share.refused_total) == (4, 3, 0)
    assert (share.evicted_total, share.evicted_address) == (2, "b")


def test_a_full_share_without_strangers_refuses_whatever_the_bound_of_strangers() -> None:
    share = Share("test", 1, 0, strangers_max=5)
    first = share.enter("a", lambda: None)
    assert isinstance(first, Ticket)
    first.settle()
    assert "1 connections are open" in str(share.enter("b", lambda: None))
    first.leave()
    assert isinstance(share.enter("b", lambda: None), Ticket)
    first.settle()
    share.validate()


def test_the_bound_of_strangers_is_of_the_protocol_alone() -> None:
    admission = Admission(strangers_max=1, open_files_max=resource.RLIM_INFINITY)
    for share in admission.shares:
        share.enter("a", lambda: None)
        share.enter("a", lambda: None)
    assert [share.total for share in admission.shares] == [1, 2]


def test_who_is_idle_again_waits_behind_those_who_are_strangers_already() -> None:
    share = Share("test", 2, 0)
    gone: list[str] = []
    first, second = (share.enter("a", partial(gone.append, name)) for name in ("first", "second"))
    assert isinstance(first, Ticket)
    first.settle()
    first.unsettle()
    assert isinstance(second, Ticket)
    share.enter("b", lambda: None)
    assert gone == ["second"]


@pytest.mark.parametrize(
    ("configured", "open_files", "binary", "http"),
    [
        ((0, 2048), 20_000, 20_000 - OPEN_FILES_RESERVED - 2048, 2048),
        ((100, 2048), 20_000, 100, 2048),
        ((50_000, 50_000), 20_000, 14_616, 4872),
        ((0, 2048), 1024, 384, 128),
        ((0, 0), 600, 225, 75),
        ((0, 0), resource.RLIM_INFINITY, 0, 0),
        ((7, 9), resource.RLIM_INFINITY, 7, 9),
    ],
)
def test_clients_never_get_the_last_files(configured: tuple[int, int], open_files: int, binary: int, http: int) -> None:
    admission = Admission(protocol_max=configured[0], http_max=configured[1], open_files_max=open_files)
    assert (admission.protocol_max, admission.http_max) == (binary, http)
    if open_files != resource.RLIM_INFINITY:
        assert binary + http <= open_files - min(OPEN_FILES_RESERVED, open_files // 2)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("a:name", "a:name"),
    ],
)
def test_what_one_address_is(host: str, address: str) -> None:
    assert address_of(host) == address
