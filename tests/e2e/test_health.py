"""`/healthz` and `/readyz` of every process of a cluster: alive is not ready."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from magnetar.testing.cluster import ClusterProcesses
from tests.support.waiting import wait_until


def status(url: str, path: str) -> tuple[int, str]:
    response = requests.get(f"{url}{path}", timeout=60)
    return response.status_code, response.text


@pytest.mark.long
def test_ready_means_that_it_can_be_used(tmp_path: Path) -> None:
    """Without a bookie the broker is alive, and stores nothing; without metadata nobody is ready, and nobody needs a restart for it."""
    with ClusterProcesses(tmp_path / "cluster", bookies=1, brokers=1, autorecovery=1) as cluster:
        broker = cluster.http_url
        found = cluster.status().values()
        urls = {each.name: each.addresses[-1] for each in found if each.addresses[-1].startswith("http")}
        assert len(urls) == 3
        for name, url in urls.items():
            assert status(url, "/healthz")[0] == 200, name
            wait_until(lambda url=url: status(url, "/readyz") == (200, "ok\n"), what=f"{name} is ready")
        bookie = next(name for name in urls if name.startswith("bookie"))
        cluster.stop(bookie)  # it leaves the list at once; that of a killed one would wait for the end of its session
        wait_until(lambda: status(broker, "/readyz")[0] == 503, 60, "the broker sees that there is no bookie")
        assert "writable bookies" in status(broker, "/readyz")[1]
        assert status(broker, "/healthz") == (200, "ok\n")
        cluster.start_again(bookie)
        wait_until(lambda: status(broker, "/readyz")[0] == 200, 60, "the broker has its bookie again")
