"""A cluster of real processes goes back to a backup of its metadata: nothing of it is lost, and no topic gets another's messages."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import urlopen

import pulsar

from magnetar.processes.cluster.plan import BOOKIE
from magnetar.testing.cluster import ClusterProcesses
from magnetar.testing.plugin import call
from magnetar.testing.server import ServerProcess
from tests.e2e.test_cluster_command import done
from tests.support.waiting import wait_until

COUNT = 20


def quiet_client(url: str) -> pulsar.Client:
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def send(client: pulsar.Client, topic: str, first: int, count: int = COUNT) -> None:
    producer = client.create_producer(topic)
    for number in range(first, first + count):
        producer.send(b"%s %d" % (topic.encode(), number))
    producer.close()


def read_all(client: pulsar.Client, topic: str) -> list[bytes]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(30_000).data())
    reader.close()
    return found


def ledger_rows(*words: object) -> dict[int, dict[str, object]]:
    return {row["ledgerId"]: row for row in json.loads(done("ledger", "list", "--json", *words))}


def test_topics_made_after_the_backup_do_not_come_back_in_new_ones(tmp_path: Path) -> None:
    directory, file = tmp_path / "c", tmp_path / "backup"
    settings = ["bookie.gcWaitTime=1000", "bookie.flushInterval=200"]
    with ClusterProcesses(directory, bookies=2, ensemble=(2, 2, 2), settings=settings) as cluster:
        client = quiet_client(cluster.service_url)
        client.subscribe("old", "keeps").close()
        send(client, "old", 0)
        taken = json.loads(done("metadata", "backup", file, "--json", "--dir", directory))
        before = ledger_rows("--dir", directory)
        client.subscribe("new", "keeps").close()
        send(client, "new", 0)
        client.close()
        lost = [
            each
            for each, row in ledger_rows("--dir", directory).items()
            if each not in before and "new" in str(row["owner"])
        ]
        assert lost, "the later topic has ledgers that the backup does not know"
        cluster.kill(*cluster.status())
        aside = tmp_path / "lost" / "metadata.sqlite"
        (directory / "metadata").rename(aside.parent)  # as if the disk had been replaced
        restored = json.loads(done("metadata", "restore", file, "--json", "--dir", directory))
        assert restored["instanceId"] == taken["instanceId"]
        cluster.start_again(*cluster.status())
        client = quiet_client(cluster.service_url)
        assert read_all(client, "old") == [b"old %d" % number for number in range(COUNT)]
        client.subscribe("new", "keeps").close()
        assert read_all(client, "new") == [], "the new topic has none of the messages of the lost one"
        send(client, "new", 100)
        assert read_all(client, "new") == [b"new %d" % number for number in range(100, 100 + COUNT)]
        fresh = [each for each in ledger_rows("--dir", directory) if each not in before]
        assert min(fresh) >= restored["nextLedgerId"] > max(lost)
        send(client, "fleeting", 0)
        done("topics", "delete", "fleeting", "--force", "--admin-url", cluster.http_url)
        wait_until(lambda: collected(cluster) >= 2, 60, "both bookies have collected")
        adopted = min(lost)
        done("ledger", "adopt", adopted, "--from", aside, "--dir", directory)
        entries = [
            json.loads(line) for line in done("ledger", "read", adopted, "--json", "--dir", directory).splitlines()
        ]
        assert entries, "the lost ledger is still on its bookies, and can be read"
        client.close()


def collected(cluster: ClusterProcesses) -> int:
    """Ledgers that the bookies have deleted since they started."""
    return sum(deleted_by(process.addresses[1]) for process in cluster.cluster.plan.of_role(BOOKIE))


def deleted_by(http_url: str) -> int:
    """Ledgers that the bookie of one process has deleted since it started."""
    with urlopen(f"{http_url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith("bookie_DELETED_LEDGER_COUNT")]
    return int(float(line.rpartition(" ")[2]))


def test_a_subscription_in_a_ledger_that_was_deleted_since_the_backup_goes_on_when_told(tmp_path: Path) -> None:
    settings = {
        "gcWaitTime": 500,
        "managedLedgerMaxEntriesPerLedger": 5,
        "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    }
    server, file = ServerProcess(tmp_path / "data", settings).start(), tmp_path / "backup"
    try:
        client = quiet_client(server.service_url)
        subscription = client.subscribe("t", "s")
        send(client, "t", 0)
        done("metadata", "backup", file, "--data-dir", server.data_dir)
        for _ in range(COUNT):
            subscription.acknowledge(subscription.receive(30_000))

        def deleted() -> bool:
            call(server.http_url, "POST", "/admin/v2/persistent/public/default/t/trim", (200, 204))
            return deleted_by(server.http_url) >= 3

        wait_until(deleted, 60, "the ledgers are deleted, and the bookie has collected them")
        client.close()
        server.stop()
        done("metadata", "restore", file, "--replace", "--data-dir", server.data_dir)
        server.start()
        client = quiet_client(server.service_url)
        subscription = client.subscribe("t", "s")
        done("subscriptions", "clear-backlog", "t", "-s", "s", "--admin-url", server.http_url)
        send(client, "t", 100, 3)
        found = [subscription.receive(30_000).data() for _ in range(3)]
        assert found == [b"t 100", b"t 101", b"t 102"]
        client.close()
    finally:
        server.close()
