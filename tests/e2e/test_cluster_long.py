"""Five bookies to a ledger under traffic: each is killed in turn, one for good, and every entry has its copies again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from magnetar.bookkeeper.quorum import check_quorum
from magnetar.testing.cluster import ClusterProcesses
from tests.e2e.test_cluster_storage import PAUSE_MAX_S, assert_nothing_lost, flows
from tests.support.cluster import all_ledgers
from tests.support.traffic import Producing
from tests.support.waiting import wait_until

Connect = Callable[..., pulsar.Client]

ENSEMBLE = (5, 3, 2)
REPAIR_MAX_S = 180.0
SETTINGS = ("bookie.zkTimeout=4000", "openLedgerRereplicationGracePeriod=2000", "managedLedgerMaxEntriesPerLedger=2000")


@pytest.mark.long
def test_copies_come_back_while_traffic_runs(tmp_path: Path, connect: Connect) -> None:
    check_quorum(*ENSEMBLE)
    with ClusterProcesses(
        tmp_path / "five", bookies=7, autorecovery=1, ensemble=ENSEMBLE, settings=SETTINGS
    ) as cluster:
        client = connect(cluster.service_url)
        client.subscribe("t", "keeps it")
        producing = Producing(client, "t", "p")
        for name in cluster.bookie_ids:
            flows(producing)
            cluster.kill(name)
            flows(producing)
            cluster.start_again(name)
        lost = cluster.bookie_ids["bookie3"]
        assert any(lost in segment.ensemble for each in all_ledgers(cluster).values() for segment in each.segments)
        cluster.kill("bookie3")

        def nobody_counts_on_it() -> bool:
            ledgers = all_ledgers(cluster).values()
            return all(lost not in segment.ensemble for each in ledgers for segment in each.segments)

        wait_until(nobody_counts_on_it, REPAIR_MAX_S, what="its copies are elsewhere")
        flows(producing)
        producing.finish()
        assert producing.failures == []
        assert producing.longest_pause_s < PAUSE_MAX_S
        print(f"longest pause of the writer: {producing.longest_pause_s:.3f} s")
        # another may go now. Two could not: an open ledger's end is proven by Qa - 1 = 1 missing answer at most
        cluster.kill("bookie1", "broker1")
        cluster.start_again("broker1")
        assert_nothing_lost(connect(cluster.service_url), "t", producing)
