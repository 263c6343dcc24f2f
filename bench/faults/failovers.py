"""The workload `geo`: two clusters, and a consumer that goes from one to the other with its replicated subscription."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.faults.targets import Regions
from bench.faults.workloads import ANSWER_S, Run, contents, keep_all, publishing, rest_of, retried, subscribe
from tests.support.raw_client import split

from magnetar.wire.pulsar.PulsarApi_pb2 import CommandSubscribe

STAY_S = (1.0, 6.0)
"""How long a consumer stays in a cluster before it goes to the other."""


def moving(run: Run, process: int, topic: str, target: Regions) -> None:
    """One application: it consumes in one cluster for some seconds, holding some messages for a while, then in the other."""
    rng = run.random((process, time.monotonic_ns()))
    turn = run.numbers("failovers")
    side = target.sides[turn[0] % 2]
    where = side.region.name
    connection = side.dial(topic, ANSWER_S)
    try:
        subscribe(connection, topic, "sub", CommandSubscribe.Exclusive, permits=1000, replicate_subscription_state=True)
        held: list[tuple[float, Any, str]] = []
        leaves_s = time.monotonic() + rng.uniform(*STAY_S)
        while not run.over.is_set() and time.monotonic() < leaves_s:
            try:
                command, data = connection.message(0.02)
                text = split(data)[1].decode()
                run.history.add(process, "ok", "deliver", text, where=where)
                held.append((time.monotonic() + rng.choice((0.0, 0.0, 0.1, 0.4)), command.message.message_id, text))
            except TimeoutError:
                pass
            for each in [each for each in held if each[0] <= time.monotonic()]:
                held.remove(each)
                run.history.add(process, "invoke", "ack", each[2], where=where)
                connection.ack(each[1], receipt=False)
                connection.flow(1)
    finally:
        turn[0] += 1
        run.history.add(process, "info", "failover", where)
        connection.close()


def geo(run: Run) -> Callable[[], None]:
    target = run.target
    assert isinstance(target, Regions)
    topic = f"persistent://public/geo/geo-{run.seed}"
    for side in target.sides:
        keep_all(side, topic, "keep")
    keep_all(target.sides[0], topic, "sub", CommandSubscribe.Exclusive, replicate_subscription_state=True)
    run.start(lambda run, process: publishing(run, process, topic, door=target.sides[process % 2]), 3)
    run.start(lambda run, process: moving(run, process, topic, target), 1, first=3)

    def end() -> None:
        west, east = target.regions
        short = topic.partition("://")[2]
        for region, other in ((west, east), (east, west)):
            retried(lambda region=region, other=other: region.wait_drained(short, other.name, timeout_s=120.0))
        for side in target.sides:
            where = side.region.name
            rest_of(run, topic, "sub", CommandSubscribe.Exclusive, side, where=where)
            read = [text for _, text in retried(lambda side=side: contents(side, topic))]
            run.history.add("reader", "ok", "read", read, where=where)

    return end
