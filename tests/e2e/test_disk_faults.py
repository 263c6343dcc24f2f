"""What the disk has not confirmed is not acknowledged; a failed fsync stops the server; a full disk refuses and recovers."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pulsar
import pytest

from magnetar.base.errors import DiskIOError
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.in_process import FaultyDisk, InProcessServer
from tests.support.raw import ClosedByServer, RawClient, send_frame
from tests.support.traffic import read_log
from tests.support.waiting import wait_until

TOPIC = "faults"
QUIET_S = 0.3

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Fails fdatasync of files below .../journal/ while the file named by FAULT_SWITCH exists. */
int fdatasync(int descriptor)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 0) {
        path[length] = 0;
        if (strstr(path, "/journal/") && access(getenv("FAULT_SWITCH"), F_OK) == 0) {
            errno = EIO;
            return -1;
        }
    }
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    return real(descriptor);
}
"""


def connected(server: InProcessServer, topic: str = TOPIC) -> RawClient:
    client = RawClient(server.port)
    client.connect()
    assert client.producer(topic).type == BaseCommand.PRODUCER_SUCCESS
    assert client.subscribe(topic, kind="Exclusive").type == BaseCommand.SUCCESS
    client.flow(1000)
    return client


def silent(client: RawClient, for_s: float = QUIET_S) -> None:
    with pytest.raises(TimeoutError):
        client.receive(for_s)


def test_nothing_is_answered_or_delivered_before_its_fsync(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with InProcessServer(tmp_path / "data", disk) as server, connected(server) as client:
        client.publish(b"warm")
        identifier = client.message()[0].message.message_id
        fsyncs = disk.fsyncs
        disk.gate.clear()
        for number in range(5):
            client.send_bytes(send_frame(b"x", number + 1))
        silent(client)
        assert disk.fsyncs == fsyncs
        disk.gate.set()
        kinds = [client.receive()[0].type for _ in range(10)]
        assert kinds.count(BaseCommand.SEND_RECEIPT) == 5
        assert kinds.count(BaseCommand.MESSAGE) == 5
        disk.gate.clear()
        ack = BaseCommand(type=BaseCommand.ACK)
        ack.ack.consumer_id, ack.ack.request_id = 1, 77
        ack.ack.ack_type = 0  # type: ignore[assignment]  # Individual
        ack.ack.message_id.add(ledgerId=identifier.ledgerId, entryId=identifier.entryId)
        client.send(ack)
        silent(client)
        disk.gate.set()
        assert client.expect(BaseCommand.ACK_RESPONSE).ackResponse.request_id == 77


def test_a_failed_fsync_stops_the_server_and_acknowledges_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with InProcessServer(tmp_path / "data", disk) as server:
        with connected(server) as client:
            for number in range(10):
                client.send_bytes(send_frame(b"stored", number))
                client.until(BaseCommand.SEND_RECEIPT)
            disk.fail_fsync = True
            client.send_bytes(send_frame(b"lost", 10))
            try:
                while True:
                    command = client.receive(1)[0]
                    assert command.type != BaseCommand.SEND_RECEIPT or command.send_receipt.sequence_id < 10
            except (TimeoutError, ClosedByServer):
                pass
            assert server.failed.wait(60)
            assert isinstance(server.failure, DiskIOError)
        # the kernel may call the next fsync a success: it must not be believed
        disk.fail_fsync = False
        with RawClient(server.port) as late:
            late.connect()
            late.send(
                BaseCommand(type=BaseCommand.PRODUCER, producer={"topic": TOPIC, "producer_id": 1, "request_id": 1})
            )
            late.send_bytes(send_frame(b"late", 11))
            try:
                while True:
                    assert late.receive(QUIET_S)[0].type != BaseCommand.SEND_RECEIPT
            except (TimeoutError, ClosedByServer):
                pass
        stopping = time.monotonic()
    assert time.monotonic() - stopping < 8
    with InProcessServer(tmp_path / "data") as server:
        client = pulsar.Client(server.service_url)
        payloads = read_log(client, TOPIC).payloads
        client.close()
    assert payloads[:10] == [b"stored"] * 10
    assert payloads[10:] in ([], [b"lost"])


def test_a_full_disk_refuses_and_recovers_without_a_restart(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with InProcessServer(tmp_path / "data", disk) as server:
        # two connections: the official client drops the one on which a SEND was refused, and tries again
        client, other = (pulsar.Client(server.service_url) for _ in range(2))
        producer = client.create_producer(TOPIC, send_timeout_millis=0)
        consumer = other.subscribe(TOPIC, "sub")
        for number in range(5):
            producer.send(b"before %d" % number)
        disk.full = True
        answers: list[pulsar.Result] = []
        producer.send_async(b"while full", lambda result, _: answers.append(result))
        with pytest.raises(AssertionError, match="did not come true"):
            wait_until(lambda: answers, 1.0)
        received = [consumer.receive(30_000) for _ in range(5)]  # reads go on
        assert not server.failed.is_set()
        disk.full = False
        server.check_disk()
        wait_until(lambda: answers == [pulsar.Result.Ok], 60, "the message is stored once there is room")
        producer.send(b"after")
        assert [consumer.receive(30_000).data() for _ in range(2)] == [b"while full", b"after"]
        for message in received:
            consumer.acknowledge(message)
        client.close()
        other.close()


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the in-process tests above cover the same fault")
    directory = tmp_path_factory.mktemp("shim")
    (directory / "shim.c").write_text(SHIM)
    library = directory / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, directory / "shim.c", "-ldl"], check=True)
    return library


def test_the_process_ends_with_code_1_and_one_line(tmp_path: Path, shim: Path) -> None:
    switch = tmp_path / "broken"
    server = ServerProcess(
        tmp_path / "data", environment={"LD_PRELOAD": str(shim), "FAULT_SWITCH": str(switch)}
    ).start()
    try:
        with RawClient(server.port) as client:
            client.connect()
            client.producer(TOPIC)
            for number in range(20):
                assert client.publish(b"stored", number).type == BaseCommand.SEND_RECEIPT
            switch.touch()
            client.send_bytes(send_frame(b"lost", 20))
            assert all(command.type != BaseCommand.SEND_RECEIPT for command in client.closed_within())
        assert server.wait(60) == 1
        log = server.log()
        assert "Traceback" not in log, log[-3000:]
        last = log.splitlines()[-1]
        assert last.startswith("magnetar: ")
        assert "fsync" in last
        assert "/journal/" in last
        assert sum(line.startswith("magnetar: ") for line in log.splitlines()) == 1
        switch.unlink()
        server.start()
        client = pulsar.Client(server.service_url)
        assert read_log(client, TOPIC).payloads[:20] == [b"stored"] * 20
        client.close()
        assert server.stop() == 0
    finally:
        server.close()
