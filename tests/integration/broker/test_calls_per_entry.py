"""The path of a message cannot grow unseen: calls of magnetar's functions on the event loop for each entry, by the length of its run.

Calls are counted and not time, so other work on the machine changes nothing. A run is what one read of the socket brought.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.broker.subscriptions.policies import SubscriptionType
from magnetar.wire.pulsar.kernel import kernel
from tests.support.calls import Calls
from tests.support.direct import DirectServer
from tests.support.path import ENTRIES, consume, publish, share

MARGIN = 1.1
"""Timers of the server may fall into what is counted."""

SHARE_MARGIN = 1.25
"""Which consumers can take more when a turn ends depends on the machine."""

PRODUCE = {1: 65.0, 8: 8.0, 64: 1.0} if kernel else {1: 70.0, 8: 11.9, 64: 4.15}
CONSUME = {1: 25.2, 8: 5.7, 64: 3.3} if kernel else {1: 33.4, 8: 12.9, 64: 10.3}
SHARE = {
    "Shared": {1: 35.2, 64: 5.0} if kernel else {1: 44.2, 64: 12.2},
    "Key_Shared": {1: 34.2, 64: 6.1} if kernel else {1: 45.7, 64: 15.3},
}
"""Calls an entry by length of its run, when this was last changed: with the compiled functions and without them."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectServer]:
    with DirectServer(tmp_path_factory.mktemp("calls") / "data") as made:
        yield made


def check(what: str, calls: Calls, bounds: dict[int, float], length: int, margin: float = MARGIN) -> None:
    found = calls.total / ENTRIES
    print(f"{what} in runs of {length}: {found:.2f} calls an entry")
    assert found <= bounds[length] * margin, (
        f"{what} in runs of {length} makes {found:.2f} calls an entry, {bounds[length]} before. Let a run make the call once instead of "
        f"each of its entries, or do what it does in the loop itself. If it has to be, say so in the commit and raise the number in "
        f"{Path(__file__).name} and in bench/README.md. Calls an entry:\n{calls.table(ENTRIES)}"
    )
    assert found >= bounds[length] / margin, (
        f"{what} in runs of {length} makes {found:.2f} calls an entry, {bounds[length]} before: keep the gain by lowering the number"
    )


@pytest.mark.parametrize("length", [1, 8, 64])
def test_calls_to_publish_an_entry(server: DirectServer, length: int) -> None:
    calls = Calls()
    server.run(publish(server, length, calls))
    check("publishing", calls, PRODUCE, length)


@pytest.mark.parametrize("length", [1, 8, 64])
def test_calls_to_consume_an_entry(server: DirectServer, length: int) -> None:
    delivering, acknowledging = Calls(), Calls()
    server.run(consume(server, length, delivering, acknowledging))
    check("consuming", delivering + acknowledging, CONSUME, length)


@pytest.mark.parametrize("length", [1, 64])
@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_calls_to_share_an_entry_among_consumers(server: DirectServer, kind: str, length: int) -> None:
    """Sixteen consumers; `length`: the acknowledgements of a run."""
    delivering, acknowledging = Calls(), Calls()
    server.run(share(server, length, SubscriptionType[kind], delivering, acknowledging))
    check(f"{kind} consuming", delivering + acknowledging, SHARE[kind], length, SHARE_MARGIN)
