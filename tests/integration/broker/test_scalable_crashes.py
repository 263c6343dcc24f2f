"""`kill -9` of a server between any two steps of a split or merge: afterwards every range takes messages, and nothing is lost."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from magnetar.admin.client import AdminClient
from magnetar.admin.client.errors import AdminClientError
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.headers import payload_of
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.raw_scalable import ScalableClient, segments_of
from tests.support.scalable_faults import STEPS, environment

TERMINATED = 4
"""The last step before the new layout: the parents take no more messages, and no child does yet."""

ALL = tuple(range(1, STEPS + 1))


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        ("split", (TERMINATED,)),
        pytest.param("split", ALL, marks=pytest.mark.long),
        pytest.param("merge", ALL, marks=pytest.mark.long),
    ],
)
def test_a_change_that_is_cut_off_at_any_step_is_ended(tmp_path: Path, change: str, steps: tuple[int, ...]) -> None:
    """One data directory; each start has the crash of the one before behind it, and the next one ahead."""
    server = ServerProcess(tmp_path / "data")
    try:
        for before, step in zip((0, *steps), (*steps, 0), strict=True):
            server.environment = environment(tmp_path / "faults", step)
            server.start()
            if before:
                check_ended(server, before, change)
            if step:
                cut_off(server, step, change)
    finally:
        server.close()


def cut_off(server: ServerProcess, step: int, change: str) -> None:
    name = f"topic://public/default/cut-{step}"
    with AdminClient(server.http_url, timeout_s=10) as admin, ScalableClient(server.port) as client:
        admin.scalable_topics.create(name, 1 if change == "split" else 2)
        client.connect()
        for number, segment in enumerate(active(client, name), 1):
            assert client.subscribe(segment, "s", number).type == BaseCommand.SUCCESS
            assert client.producer(segment, number).type == BaseCommand.PRODUCER_SUCCESS
            assert client.publish(b"before", producer_id=number).type == BaseCommand.SEND_RECEIPT
        begin = admin.scalable_topics.split if change == "split" else partial(admin.scalable_topics.merge, other_id=1)
        with pytest.raises(AdminClientError):
            begin(name, segment_id=0)
    server.wait()


def check_ended(server: ServerProcess, step: int, change: str) -> None:
    name = f"topic://public/default/cut-{step}"
    with ScalableClient(server.port) as client:
        client.connect()
        found = segments_of(client.layout(name))
        states = [state for _, _, state in found.values()]
        assert states.count("ACTIVE") == (2 if change == "split" else 1), f"step {step}: {found}"
        writable = active(client, name)
        for number, segment in enumerate(writable, 1):
            assert client.producer(segment, number).type == BaseCommand.PRODUCER_SUCCESS, f"step {step}: {segment}"
            assert client.publish(b"after", producer_id=number).type == BaseCommand.SEND_RECEIPT
        sealed = [each for each in every(client, name) if each not in writable]
        assert [read(server, segment) for segment in sealed] == [b"before"] * len(sealed)
        assert [read(server, segment) for segment in writable] == [b"after"] * len(writable)


def read(server: ServerProcess, segment: str) -> bytes:
    """The first message of the subscription that was there before the change."""
    with ScalableClient(server.port) as client:
        client.connect()
        assert client.subscribe(segment, "s").type == BaseCommand.SUCCESS
        client.flow(1)
        return payload_of(client.message()[1])


def every(client: ScalableClient, name: str) -> list[str]:
    found = segments_of(client.layout(name))
    base = name.replace("topic://", "segment://")
    return [f"{base}/{start:04x}-{end:04x}-{number}" for number, (start, end, _) in sorted(found.items())]


def active(client: ScalableClient, name: str) -> list[str]:
    states = [state for _, (_, _, state) in sorted(segments_of(client.layout(name)).items())]
    return [segment for segment, state in zip(every(client, name), states, strict=True) if state == "ACTIVE"]
