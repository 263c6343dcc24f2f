"""A region that is away: no snapshot leaves it out unasked, and operators see why and can decide (PIP-33's own example)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.support.geo import Region, receive
from tests.support.geo_links import Links, far_regions
from tests.support.replicated_topic import (
    INTERVAL_MS,
    QUICK,
    URL,
    backlog,
    publish,
    rest,
    settled,
    subscribe,
    touch,
)
from tests.support.waiting import wait_until

PARTIAL = "replicatedSubscriptionsPartialSnapshotsAfterSeconds"


def command(region: Region, *words: str, code: int = 0) -> Any:
    """`magnetar topics ... --json` against a region."""
    run = [
        sys.executable,
        "-m",
        "magnetar",
        "topics",
        *words,
        "--json",
        "--admin-url",
        f"http://127.0.0.1:{region.server.http_port}",
    ]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def status(region: Region) -> Any:
    (found,) = command(region, "replicated-subscription", "status", URL)
    return found


def published_in_b_and_seen_by_c(regions: list[Region], cut: list[tuple[str, str]], links: Links) -> bytes:
    _, b, c = regions
    for link in cut:
        links.cut(*link)
    message = b"of b, in c, not in a"
    b.client.create_producer(URL).send(message)
    witness = c.client.subscribe(URL, "witness", initial_position=pulsar.InitialPosition.Earliest)
    assert message in [each.data() for each in receive(witness, 10)]
    return message


@pytest.mark.parametrize("cut", [[("b", "a")], [("b", "a"), ("a", "b")]], ids=["answers do not come", "disconnected"])
def test_no_cursor_moves_over_what_a_region_away_has_sent_to_others(tmp_path: Path, cut: list[tuple[str, str]]) -> None:
    with far_regions(tmp_path, "a", "b", "c", settings=QUICK) as (links, [a, b, c]):
        regions = [a, b, c]
        touch(*regions)
        consumer = subscribe(a)
        receive(consumer, len(publish(regions, 3, "first")))
        wait_until(settled(c), 60, "the cursor in c")
        missing = published_in_b_and_seen_by_c(regions, cut, links)
        later = publish([a, c], 10, "later")
        receive(consumer, len(later))
        time.sleep(8 * INTERVAL_MS / 1000)
        assert (backlog(c) or 0) > 10
        found = status(a)
        assert [each["cluster"] for each in found["clusters"] if each["missing"]] == ["b"]
        (subscription,) = found["subscriptions"]
        assert subscription["wouldRepeatMessages"] >= 20
        assert "b" in subscription["reason"]
        links.mend_all()
        assert [each.data() for each in receive(consumer, 1, 90)] == [missing]
        wait_until(settled(c), 60, "the cursor in c")
        assert rest(c, subscribe(c)) == []


def test_partial_snapshots_skip_it_which_is_why_they_are_off(tmp_path: Path) -> None:
    """The control: with a time set the same message is lost to the subscription, as docs/explanation/geo-replication.md warns."""
    with far_regions(tmp_path, "a", "b", "c", settings={**QUICK, PARTIAL: 1}) as (links, [a, b, c]):
        regions = [a, b, c]
        touch(*regions)
        consumer = subscribe(a)
        receive(consumer, len(publish(regions, 3, "first")))
        wait_until(settled(c), 60, "the cursor in c")
        missing = published_in_b_and_seen_by_c(regions, [("b", "a"), ("a", "b")], links)
        later = publish([a, c], 10, "later")
        assert missing not in {message.data() for message in receive(consumer, len(later))}
        wait_until(settled(c), 60, "the cursor in c")
        assert [each["cluster"] for each in status(a)["clusters"] if each["excluded"]] == ["b"]


@pytest.mark.long
def test_an_operator_gives_a_region_up(tmp_path: Path) -> None:
    with far_regions(tmp_path, "a", "b", "c", settings=QUICK) as (_, [a, b, c]):
        regions = [a, b, c]
        touch(*regions)
        consumer = subscribe(a)
        receive(consumer, len(publish(regions, 3, "first")))
        wait_until(settled(c), 60, "the cursor in c")
        forced = command(a, "replicated-subscription", "force-snapshot", URL)
        assert forced["snapshots"] == [status(a)["lastSnapshotPosition"]]
        assert "it is connected" in command(a, "replicated-subscription", "exclude", URL, "b", code=1)
        b.disconnect_client()
        b.server.kill()
        receive(consumer, len(publish([a, c], 10, "later")))
        wait_until(lambda: not status(a)["clusters"][0]["connected"], 60, "b is seen to be away")
        assert "exclude it" in command(a, "replicated-subscription", "force-snapshot", URL, code=1)
        assert (backlog(c) or 0) > 0
        command(a, "replicated-subscription", "exclude", URL, "b")
        wait_until(settled(c), 60, "the cursor in c")


def test_a_subscription_becomes_replicated_and_ceases_to_be(tmp_path: Path) -> None:
    with far_regions(tmp_path, "a", "b", settings=QUICK) as (_, [a, b]):
        touch(a, b)
        consumer = a.client.subscribe(URL, "sub", initial_position=pulsar.InitialPosition.Earliest)
        receive(consumer, len(publish([a, b], 5, "m")))
        time.sleep(4 * INTERVAL_MS / 1000)
        assert backlog(b) is None
        assert command(a, "get-replicated-subscription-status", URL, "-s", "sub") == {URL: False}
        command(a, "set-replicated-subscription-status", URL, "-s", "sub", "--enable")
        wait_until(settled(b), 60, "the subscription in b")
        a.disconnect_client()
        a.server.restart()
        assert command(a, "get-replicated-subscription-status", URL, "-s", "sub") == {URL: True}
        command(a, "set-replicated-subscription-status", URL, "-s", "sub", "--disable")
        consumer = a.client.subscribe(URL, "sub")
        receive(consumer, len(publish([a], 5, "later")))
        wait_until(lambda: backlog(b) == 5, what="the later messages are in b")
        time.sleep(4 * INTERVAL_MS / 1000)
        assert backlog(b) == 5
