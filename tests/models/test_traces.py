"""What simulated runs do is what the TLA+ models allow, says TLC; what runs with deliberate bugs do is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.broker.replication.replicated_subscription import SnapshotCache
from magnetar.testing.sim.mutations import mutated
from magnetar.testing.sim.run import run_seed
from tests.models import checker
from tests.models.recording import LedgerRecord, bundles_of, ledgers_of, ledgers_of_script, recording_ledgers
from tests.models.replication import clusters_of
from tests.property.broker.geo_model import Model, play
from tests.property.broker.test_replicated_subscription_properties import OneRound, forwards_or_backwards
from tests.simulation.test_mutations import CAUGHT_BY_SCRIPT

REFUSED = (
    "fence not journaled",
    "resend before the metadata is written",
    "entries complete in any order",
    "one acknowledgement is enough",
    "recovery reads without fence",
    "one negative is enough",
)
"""Deliberate bugs of which each breaks another action of the model."""


@pytest.fixture
def tlc() -> Path:
    found = checker.jar()
    if found is None:
        pytest.skip("needs java and TLC, whose jar $TLA2TOOLS names")
    return found


def test_recording_changes_nothing() -> None:
    plain = run_seed("3").digest
    with recording_ledgers(LedgerRecord()):
        assert run_seed("3").digest == plain


def test_ledgers_begin_with_their_creation_and_are_acknowledged_in_order() -> None:
    traces = ledgers_of("3").values()
    assert traces
    for trace in traces:
        assert trace[0][0] == "create"
        acked = [event[1] for event in trace if event[0] == "ack"]
        assert acked == list(range(len(acked)))


def test_only_the_owner_of_a_bundle_delivers() -> None:
    """The one rule of Bundles.tla that needs no model checker."""
    delivered = 0
    for seed in range(29, 33):
        owner: dict[int, int] = {}
        for kind, *words in bundles_of(str(seed)):
            if kind == "acquire":
                assert words[0] not in owner
                owner[words[0]] = words[1]
            elif kind == "release":
                assert owner.pop(words[0]) == words[1]
            elif kind == "session ends":
                owner = {bundle: broker for bundle, broker in owner.items() if broker != words[0]}
            elif kind == "deliver":
                assert owner.get(words[0]) == words[1]
                delivered += 1
    assert delivered


def test_clean_runs_are_accepted(tlc: Path, tmp_path: Path) -> None:
    ledgers = [trace for seed in range(4) for trace in ledgers_of(str(seed)).values()]
    assert checker.refused("LedgerTrace", ledgers, tmp_path, tlc) == []
    brokers = [trace for seed in (29, 30) if (trace := bundles_of(str(seed)))]
    assert checker.refused("BundlesTrace", brokers, tmp_path, tlc) == []


def test_planted_bugs_are_refused(tlc: Path, tmp_path: Path) -> None:
    found = {}
    traces = []
    for name in REFUSED:
        with mutated(name):
            for trace in ledgers_of_script(CAUGHT_BY_SCRIPT[name]):
                found[len(traces)] = name
                traces.append(trace)
    assert {found[number] for number in checker.refused("LedgerTrace", traces, tmp_path, tlc)} == set(REFUSED)


def test_a_broker_that_serves_without_owning_is_refused(tlc: Path, tmp_path: Path) -> None:
    trace = [("acquire", 1, 1), ("deliver", 1, 1), ("session ends", 1), ("acquire", 1, 2), ("deliver", 1, 2)]
    late = [*trace, ("deliver", 1, 1)]
    assert checker.refused("BundlesTrace", [trace, late], tmp_path, tlc) == [1]
    assert checker.first_refused_event("BundlesTrace", late, tmp_path, tlc) == 5


# ---- Replicated subscriptions


def test_recording_clusters_changes_nothing() -> None:
    plain = play(Model(3), 5, 400)
    recorded = clusters_of("5", 3)
    messages = sum(event[0] == "publish" for event in recorded)
    assert messages == len(
        {entry.body for region in plain.regions for entry in region.log if isinstance(entry.body, int)}
    )
    assert sum(event[0] == "snapshot" for event in recorded) == plain.snapshots


def test_clusters_are_accepted_and_planted_bugs_are_not(
    tlc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = [clusters_of(str(seed)) for seed in range(3, 6)]
    assert {"snapshot", "update", "move", "consumed"} <= {event[0] for trace in traces for event in trace}
    clean = len(traces)
    traces.append(clusters_of("1", 3, builder=OneRound))
    traces.append(clusters_of("1", 3, steps=800, decide_update=forwards_or_backwards))
    with monkeypatch.context() as patched:
        patched.setattr(SnapshotCache, "at_or_before", lambda cache, mark_delete: cache.newest)
        traces.append(clusters_of("1", 2))
    assert checker.refused("ReplicatedSubscriptionsTrace", traces, tmp_path, tlc) == list(range(clean, len(traces)))


def test_a_model_that_asks_once_skips_a_message(tlc: Path, tmp_path: Path) -> None:
    """Which is what the second round of questions is for."""
    checker.lay_out(tmp_path, [])
    asks_once = ("-config", "ReplicatedSubscriptionsOneRound.cfg")
    output = checker.run_tlc("ReplicatedSubscriptionsModel", tmp_path, tlc, *asks_once)
    assert "Invariant NothingSkipped is violated" in output
