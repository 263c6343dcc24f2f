"""Access modes as a decision core: random arrivals and departures keep its invariants; each rule once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.errors import ProducerBusyError, ProducerFencedError
from magnetar.broker.topics.access_modes import Producers
from magnetar.broker.topics.producer import AccessMode, Producer
from tests.unit.broker.producer_fakes import producer

SHARED, EXCLUSIVE, WAITING, FENCING = AccessMode


def test_any_number_of_shared_producers() -> None:
    producers = Producers()
    newcomers = [producer(str(index)) for index in range(5)]
    for newcomer in newcomers:
        assert producers.add(newcomer, 0).ready == [newcomer]
    assert producers.all == newcomers


def test_the_limit_counts_only_while_it_is_reached() -> None:
    producers = Producers(producers_max=1)
    first = producer("a")
    producers.add(first, 0)
    with pytest.raises(ProducerBusyError, match="limit 1"):
        producers.add(producer("b"), 0)
    producers.remove(first)
    producers.add(producer("b"), 0)


@pytest.mark.parametrize(("mode", "error"), [(SHARED, ProducerBusyError), (EXCLUSIVE, ProducerFencedError)])
def test_an_exclusive_producer_is_alone(mode: AccessMode, error: type[Exception]) -> None:
    producers = Producers()
    producers.add(producer("holder", EXCLUSIVE), 0)
    with pytest.raises(error):
        producers.add(producer("other", mode), 0)
    producers.validate()


def test_exclusive_access_needs_an_empty_topic() -> None:
    producers = Producers()
    producers.add(producer("shared"), 0)
    with pytest.raises(ProducerFencedError):
        producers.add(producer("exclusive", EXCLUSIVE), 0)


def test_waiting_is_first_come_first_served() -> None:
    producers = Producers()
    holder = producer("holder", WAITING)
    waiting = [producer(str(index), WAITING) for index in range(3)]
    assert producers.add(holder, 0).ready == [holder]
    for one in waiting:
        assert producers.add(one, 0).ready == []
    producers.remove(waiting[1])
    assert producers.remove(holder).ready == [waiting[0]]
    assert producers.remove(waiting[0]).ready == [waiting[2]]
    assert producers.remove(waiting[2]).ready == []


def test_nobody_overtakes_those_who_wait() -> None:
    producers = Producers()
    producers.add(producer("shared"), 0)
    producers.add(producer("waits", WAITING), 0)
    with pytest.raises(ProducerBusyError):
        producers.add(producer("late"), 0)


def test_fencing_throws_everybody_out() -> None:
    producers = Producers()
    everybody = [producer("holder", EXCLUSIVE), producer("waits", WAITING)]
    for one in everybody:
        producers.add(one, 0)
    fencing = producer("fencing", FENCING)
    admission = producers.add(fencing, 0)
    assert (admission.ready, admission.fenced) == ([fencing], everybody)
    assert producers.remove(everybody[0]).ready == []


@pytest.mark.parametrize("mode", list(AccessMode))
def test_an_old_epoch_is_refused_in_every_mode(mode: AccessMode) -> None:
    producers = Producers()
    with pytest.raises(ProducerFencedError, match="older"):
        producers.add(producer("p", mode, topic_epoch=4), 5)
    producers.add(producer("p", mode, topic_epoch=5), 5)


@given(st.lists(st.tuples(st.sampled_from([*AccessMode, None]), st.integers(0, 5)), max_size=40))
def test_invariants_over_any_history(steps: list[tuple[AccessMode | None, int]]) -> None:
    """None: the producer at that place leaves. Whoever asked is ready, waiting, refused, fenced or gone; never two of them."""
    producers = Producers()
    present: list[Producer] = []
    for number, (mode, place) in enumerate(steps):
        if mode is None:
            if present:
                leaving = present.pop(place % len(present))
                for promoted in producers.remove(leaving).ready:
                    assert promoted in present
        else:
            newcomer = producer(str(number), mode)
            try:
                admission = producers.add(newcomer, 0)
            except (ProducerBusyError, ProducerFencedError):
                continue
            present = [one for one in present if one not in admission.fenced]
            present.append(newcomer)
        producers.validate()
        assert sorted(one.name for one in [*producers.all, *producers.waiting]) == sorted(one.name for one in present)
