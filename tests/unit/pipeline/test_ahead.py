"""One epoch at a time in a thread of its own, and where a pipeline stands when it is through."""

from __future__ import annotations

import threading

import pytest

from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.state.manifest import Manifest
from magnetar.pipeline.views.control.driver import Head, OneAhead
from magnetar.pipeline.views.epoch.epoch import Batch


@pytest.fixture
def ahead() -> OneAhead:
    return OneAhead()


def test_an_epoch_runs_elsewhere_and_is_waited_for(ahead: OneAhead) -> None:
    go, ran = threading.Event(), []

    def epoch() -> None:
        assert go.wait(10)
        ran.append(threading.current_thread())

    ahead.settle()  # nothing yet
    assert ahead.is_idle
    ahead.begin(epoch)
    assert not ahead.is_idle
    assert ran == []
    go.set()
    ahead.settle()
    assert ahead.is_idle
    assert len(ran) == 1
    assert ran[0] is not threading.current_thread()
    ahead.begin(epoch)
    ahead.close()
    assert len(ran) == 2, "closing waits"
    assert ran[0] is ran[1], "what Spark keeps for a thread is kept"


def test_a_failure_stays_until_somebody_meets_it(ahead: OneAhead) -> None:
    error = ValueError("the units said no")

    def epoch() -> None:
        raise error

    ahead.begin(epoch)
    with pytest.raises(ValueError, match="the units said no"):
        ahead.settle()
    assert ahead.failure is error
    assert not ahead.is_idle, "nothing is begun behind a failure"
    with pytest.raises(AssertionError):
        ahead.begin(lambda: None)


def test_where_it_stands_after_an_epoch() -> None:
    mapping = VnodeMapping.even(2)
    manifest = Manifest(7, 0, 0, 3, mapping.to_json(), sources={"a": {"t": 1}, "b": {"u": 5}}, created_ms=2)
    head = Head.of(manifest)
    assert head == Head(3, {"a": {"t": 1}, "b": {"u": 5}}, mapping, 2000)
    wider = mapping.rescale(3)
    after = head.after(Batch(4, 9000, offsets={"a": {"t": 4}}), wider)
    assert after == Head(4, {"a": {"t": 4}, "b": {"u": 5}}, wider, 9000)
