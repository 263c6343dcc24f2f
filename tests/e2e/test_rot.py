"""Bits flip in the entry logs of one of three bookies: the copies are good again afterwards, and nothing else was copied."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.request import urlopen

import pulsar
import pytest

from magnetar.processes.cluster.plan import AUTORECOVERY
from magnetar.testing.cluster import ClusterProcesses
from tests.e2e.test_cluster_command import done, quickly
from tests.support.cluster import ledgers_of
from tests.support.waiting import wait_until

COUNT = 60
DAMAGED = tuple(range(2, COUNT - 2, 5))
"""Messages whose copies are damaged on one bookie: none is the first or the last of its ledger."""

SETTINGS = ["bookie.flushInterval=100", "bookie.dbStorage_readAheadCacheMaxSizeMb=0"]


def payload(number: int) -> bytes:
    return b"<<message %04d>>" % number * 8


def quiet_client(url: str) -> pulsar.Client:
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def write(cluster: ClusterProcesses, topic: str, subscription: str | None = "keeps") -> None:
    client = quiet_client(cluster.service_url)
    if subscription is not None:
        client.subscribe(topic, subscription).close()
    producer = client.create_producer(topic)
    for number in range(COUNT):
        producer.send(payload(number))
    client.close()


def flip_bits(cluster: ClusterProcesses, bookie: str) -> None:
    """One bit of each of the `DAMAGED` messages' copies, in the files of the running bookie."""
    name = next(name for name, bookie_id in cluster.bookie_ids.items() if bookie_id == bookie)
    flipped = 0

    def all_flushed() -> bool:
        logs = b"".join(path.read_bytes() for path in (cluster.directory / name).rglob("*.log"))
        return all(payload(number) in logs for number in range(COUNT))

    wait_until(all_flushed, 60, "all entries are in entry logs")
    for path in (cluster.directory / name).rglob("*.log"):
        data = path.read_bytes()
        with path.open("r+b") as file:
            for number in DAMAGED:
                position = data.find(payload(number))
                if position >= 0:
                    file.seek(position + 20)
                    file.write(bytes([data[position + 20] ^ 0x10]))
                    flipped += 1
    assert flipped == len(DAMAGED)


def verified(cluster: ClusterProcesses) -> list[dict[str, object]]:
    """Ledgers of which a copy is not good, read from each bookie itself."""
    finished = quickly("ledger", "verify", "--all", "--json", "--dir", cluster.directory)
    reports: list[dict[str, object]] = json.loads(finished.out)
    assert (finished.code == 0) == all(each["good"] == each["copies"] for each in reports)
    return [each for each in reports if each["good"] != each["copies"]]


def metrics(cluster: ClusterProcesses) -> dict[str, float]:
    (recovery,) = cluster.cluster.plan.of_role(AUTORECOVERY)
    with urlopen(f"{recovery.addresses[0]}/metrics") as answer:
        text = answer.read().decode()
    return {
        match[1]: float(match[2]) for match in re.finditer(r"^autorecovery_(\w+)(?:\{\})? (\S+)$", text, re.MULTILINE)
    }


def read_all(cluster: ClusterProcesses, topic: str) -> list[bytes]:
    client = quiet_client(cluster.service_url)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [reader.read_next(30_000).data() for _ in range(COUNT)]
    client.close()
    return found


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
@pytest.mark.parametrize("finder", ["check", "read"])
def test_damaged_copies_are_repaired(tmp_path: Path, finder: str, closed: bool) -> None:
    interval_s = 1 if finder == "check" else 0
    settings = [*SETTINGS, f"autorecovery.auditorPeriodicCheckInterval={interval_s}"]
    with ClusterProcesses(
        tmp_path / "c", bookies=3, brokers=1, autorecovery=1, ensemble=(3, 3, 2), settings=settings
    ) as cluster:
        write(cluster, "rot")
        if closed:
            cluster.stop("broker1")  # closes its ledgers
            cluster.start_again("broker1")
        ledger = ledgers_of(cluster, "public/default/persistent/rot")[0]
        victim = ledger.last_segment.ensemble[0]
        flip_bits(cluster, victim)
        if finder == "read":
            (broken,) = verified(cluster)
            assert len(broken["bookies"][victim]["damaged"]) == len(DAMAGED)  # type: ignore[index]
            if not closed:
                cluster.kill("broker1")  # a new one has nothing in its cache, and takes the ledger over
                cluster.start_again("broker1")
            assert read_all(cluster, "rot") == [payload(number) for number in range(COUNT)], (
                "reads go around the damage"
            )
        wait_until(lambda: not verified(cluster), 90, "every copy is good again")
        found = metrics(cluster)
        assert found["copies_rewritten_total"] == len(DAMAGED)
        assert found["entries_copied_total"] == 0, "what was sound was not copied"
        if finder == "check":
            assert found["copies_damaged_total"] >= len(DAMAGED)
            assert found["copies_read_total"] >= 3 * COUNT
        wait_until(lambda: marks(cluster) == [], 60, "no mark is left")
        after = ledgers_of(cluster, "public/default/persistent/rot")[0]
        assert after.last_segment.ensemble == ledger.last_segment.ensemble
        assert read_all(cluster, "rot") == [payload(number) for number in range(COUNT)]


def marks(cluster: ClusterProcesses) -> list[str]:
    where = ("--dir", cluster.directory)
    listed: list[str] = json.loads(done("bookies", "recovery", "list", "--json", *where))
    noted: list[str] = json.loads(done("metadata", "ls", "/magnetar/damaged-copies", "--json", *where))
    return [*listed, *noted]


@pytest.mark.parametrize("place", ["payload", "length"])
def test_what_the_last_commit_of_a_journal_lost_is_copied_back_at_once(tmp_path: Path, place: str) -> None:
    """One copy cannot tell a damaged last commit from one that was under way. Nobody reads and no check of all copies is due: the bookie
    asks for the repair of what the commit may have held."""
    settings = ["bookie.dbStorage_readAheadCacheMaxSizeMb=0", "autorecovery.auditorPeriodicCheckInterval=0"]
    with ClusterProcesses(
        tmp_path / "c", bookies=3, brokers=1, autorecovery=1, ensemble=(3, 3, 2), settings=settings
    ) as cluster:
        admin_url = cluster.broker("broker1")[1]
        done("namespaces", "set-retention", "public/default", "-s", "-1", "-t", "-1", "--admin-url", admin_url)
        write(cluster, "rot", subscription=None)  # the state of a cursor would come after the last message
        cluster.stop("broker1")  # closes the ledger: of an open one the next owner would restore the last entries
        victim = ledgers_of(cluster, "public/default/persistent/rot")[0].last_segment.ensemble[0]
        name = next(name for name, bookie_id in cluster.bookie_ids.items() if bookie_id == victim)
        cluster.kill(name)
        journal = max((cluster.directory / name).rglob("*.journal"))
        data = journal.read_bytes()
        # Receipts came one by one, so the last commit holds the last message and nothing else of weight.
        position = data.rfind(payload(COUNT - 1))
        assert position > 0
        position += 20 if place == "payload" else -data[position - 200 : position][::-1].find(b"\0\0\0") - 1
        with journal.open("r+b") as file:
            file.seek(position)
            file.write(bytes([data[position] ^ 0x10]))
        cluster.start_again(name)
        assert "the last commit of the journal cannot be read" in (cluster.directory / f"{name}.log").read_text()
        wait_until(lambda: metrics(cluster)["entries_copied_total"] >= 1, 60, "the entry is copied back")
        wait_until(lambda: not verified(cluster), 60, "every copy is good again")
        cluster.start_again("broker1")
        assert read_all(cluster, "rot") == [payload(number) for number in range(COUNT)]
