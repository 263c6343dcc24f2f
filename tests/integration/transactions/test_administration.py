"""Transactions over REST, by command, in the metrics."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import requests
from click.testing import CliRunner

from magnetar.admin.client.client import AdminClient
from magnetar.cli.main import cli
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import CommandSubscribe, ServerError
from tests.integration.transactions.test_messages import publish
from tests.support.raw_transactions import RawTransactions, TransactionRefused, Txn
from tests.support.waiting import wait_until


def busy(raw: RawTransactions, topic: str, coordinator: int = 0) -> Txn:
    """A transaction with a message and a cumulative acknowledgement in a topic."""
    raw.producer(topic)
    raw.subscribe(topic, "s", CommandSubscribe.Exclusive)
    publish(raw, b"x", 0)
    identifier = raw.message()[0].message.message_id
    txn = raw.begin(coordinator=coordinator)
    raw.add_partitions(txn, topic)
    raw.add_subscription(txn, topic, "s")
    raw.publish_in(txn, b"y", sequence_id=1)
    raw.ack_in(txn, identifier, cumulative=True)
    return txn


def test_an_open_transaction_is_seen_everywhere(raw: RawTransactions, admin: AdminClient, topic: str) -> None:
    txn = busy(raw, topic)
    found = admin.transactions.metadata(*txn)
    assert (found.txn_id, found.status, found.timeout_at) == (f"({txn[0]},{txn[1]})", "OPEN", 60_000)
    start = found.produced_partitions[topic].start_position
    assert start is not None
    upto = found.acked_partitions[topic]["s"].cumulative_ack_position
    assert upto is not None
    ledger, entry = map(int, upto.split(":"))
    assert start == f"{ledger}:{entry + 1}"
    assert admin.transactions.in_buffer_stats(topic, *txn).start_position == start
    assert admin.transactions.in_pending_ack_stats(topic, "s", *txn).cumulative_ack_position == upto
    buffer = admin.transactions.buffer_stats(topic)
    assert (buffer.state, buffer.ongoing_txn_size, buffer.max_read_position) == ("Ready", 1, upto)
    assert admin.transactions.pending_ack_stats(topic, "s").ongoing_txn_size == 1
    assert admin.transactions.position_in_pending_ack(topic, "s", ledger, entry).state == "PendingAck"
    assert admin.transactions.position_in_pending_ack(topic, "s", ledger, entry + 1).state == "NotInPendingAck"
    assert admin.transactions.position_in_pending_ack(topic, "s", ledger, entry + 9).state == "InvalidPosition"
    assert admin.transactions.stats_of(txn[0]).ongoing_txn_size >= 1
    assert f"({txn[0]},{txn[1]})" in admin.transactions.slow(0)
    assert f"({txn[0]},{txn[1]})" not in admin.transactions.slow(3_600_000)
    log = admin.transactions.coordinator_internal_stats(txn[0]).transaction_log_stats
    assert log.managed_ledger_name == f"pulsar/system/persistent/__transaction_log_{txn[0]}"
    pending_log = admin.transactions.pending_ack_internal_stats(topic, "s").pending_ack_log_stats
    assert "__pending_ack_state" in pending_log.managed_ledger_internal_stats["cursors"]
    raw.commit(txn)
    assert admin.transactions.position_in_pending_ack(topic, "s", ledger, entry).state == "MarkDelete"
    assert admin.transactions.buffer_stats(topic).ongoing_txn_size == 0


def test_an_administrator_aborts(raw: RawTransactions, admin: AdminClient, topic: str) -> None:
    txn = busy(raw, topic)
    admin.transactions.abort(*txn)
    assert admin.transactions.in_buffer_stats(topic, *txn).aborted
    with pytest.raises(TransactionRefused) as refused:
        raw.commit(txn)
    assert refused.value.code == ServerError.TransactionNotFound


def test_what_is_not_there(server: ServerProcess, raw: RawTransactions, topic: str) -> None:
    def status(path: str, method: str = "GET", **options: object) -> int:
        return requests.request(
            method, f"{server.http_url}/admin/v3/transactions/{path}", timeout=60, **options
        ).status_code

    raw.producer(topic)
    name = topic.removeprefix("persistent://")
    assert status("transactionMetadata/0/999999") == 404
    assert status("transactionMetadata/99/1") == 404
    assert status("coordinatorStats?coordinatorId=99") == 404
    assert status("coordinatorStats?coordinatorId=x") == 404
    assert status("coordinatorInternalStats/15") == 404
    assert status("transactionBufferStats/public/default/nowhere") == 404
    assert status(f"pendingAckStats/{name}/nobody") == 404
    assert status("transactionCoordinator/replicas", "POST", json=3) == 406
    assert status("transactionCoordinator/replicas", "POST", json="x") == 400


def test_commands(server: ServerProcess, raw: RawTransactions, topic: str) -> None:
    txn = busy(raw, topic, coordinator=3)
    ids = ["-m", str(txn[0]), "-l", str(txn[1])]

    def run(*words: str) -> object:
        result = CliRunner().invoke(cli, ["transactions", *words, "--admin-url", server.http_url, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    assert run("transaction-metadata", *ids)["status"] == "OPEN"
    assert f"({txn[0]},{txn[1]})" in run("slow-transactions", "-t", "0s", "-c", "3")
    assert run("coordinator-stats", "-c", "3")["state"] == "Ready"
    assert len(run("coordinators-list")) >= 16
    assert run("transaction-buffer-stats", "-t", topic)["ongoingTxnSize"] == 1
    assert run("transaction-in-buffer-stats", *ids, "-t", topic)["startPosition"]
    assert run("pending-ack-stats", "-t", topic, "-s", "s")["ongoingTxnSize"] == 1
    assert run("transaction-in-pending-ack-stats", *ids, "-t", topic, "-s", "s")["cumulativeAckPosition"]
    assert run("abort-transaction", *ids)["aborted"] == f"({txn[0]},{txn[1]})"


def test_metrics(server: ServerProcess, raw: RawTransactions) -> None:
    def value(name: str) -> float:
        text = requests.get(f"{server.http_url}/metrics", timeout=60).text
        for line in text.splitlines():
            if line.startswith(f"pulsar_txn_{name}{{") and 'coordinator_id="7"' in line:
                return float(line.rpartition(" ")[2])
        return 0.0

    raw.commit(raw.begin(coordinator=7))
    raw.abort(raw.begin(coordinator=7))
    raw.begin(ttl_ms=10, coordinator=7)
    raw.begin(coordinator=7)
    wait_until(lambda: value("timeout_count") == 1)
    wait_until(lambda: value("aborted_count") == 2)
    assert [value(name) for name in ("created_count", "committed_count", "active_count")] == [4, 1, 1]
    assert value("append_log_count") == 7


def test_more_coordinators(
    start_server: Callable[..., ServerProcess], dial: Callable[[ServerProcess], RawTransactions]
) -> None:
    server = start_server(initialNumTransactionCoordinators=2)
    raw, admin = dial(server), AdminClient(server.http_url)
    with pytest.raises(TransactionRefused):
        raw.connect_coordinator(2)
    admin.transactions.scale(3)
    raw.connect_coordinator(2)
    raw.commit(raw.begin(coordinator=2))
    assert len(admin.transactions.coordinators()) == 3
