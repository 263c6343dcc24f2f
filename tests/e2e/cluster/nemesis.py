"""Faults of brokers and of their metadata store, chosen by a seed."""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from magnetar.metadata.zookeeper_process import four_letters
from tests.e2e.cluster.proxied import ProxiedCluster
from tests.support.brokers import broker_names, bundle_of, get, live_broker, owner_of, send, unload
from tests.support.stalling_proxy import Direction
from tests.support.waiting import wait_until

T = TypeVar("T")

LOOKUP_S = 30.0
"""So long a lookup may fail after a fault before that is an error of its own."""

Fault = Callable[[str], str]
"""Does it to a topic, mends it, and answers what it was."""


class Nemesis:
    """Every kind once in random order, then again in another one. `session_s`: the brokers' session with the metadata store."""

    def __init__(self, cluster: ProxiedCluster, topics: Sequence[str], rng: random.Random, session_s: float) -> None:
        self._cluster = cluster
        self._topics = list(topics)
        self._rng = rng
        self._session_s = session_s
        self._kinds: dict[str, Fault] = {
            "kill -9 owner": self._kill_owner,
            "kill -9 leader": self._kill_leader,
            "kill -9 owner and successor": self._kill_twice,
            "SIGSTOP owner beyond its session": self._zombie,
            "metadata store killed and started at once": self._store_blinks,
            "metadata store away longer than a session": self._store_leaves,
            "owner cut off from the metadata": self._cut_off,
            "owner cut off from the metadata in one direction": self._cut_one_way,
            "owner's wire to the metadata flaps": self._flap,
            "SIGTERM owner (drain)": self._drain,
            "rolling restart": self._rolling_restart,
            "unload": self._unload,
            "split": self._split,
        }
        if len(self._stores()) > 1:
            self._kinds |= {
                "kill -9 a member of the ensemble": self._kill_member,
                "SIGSTOP the ensemble's leader": self._pause_leader,
                "a member of the ensemble loses its disk": self._wipe_member,
            }

    def schedule(self, only: Sequence[str] = ()) -> Iterator[tuple[str, Fault, str]]:
        """Kind, fault, topic; without end."""
        kinds = [kind for kind in self._kinds if not only or kind in only]
        while True:
            self._rng.shuffle(kinds)
            for kind in kinds:
                yield kind, self._kinds[kind], self._rng.choice(self._topics)

    def joined(self, timeout_s: float) -> None:
        """Every broker is in the cluster again."""
        names = broker_names(self._cluster)

        def all_there() -> bool:
            with contextlib.suppress(OSError):
                return len(get(f"{live_broker(self._cluster)}/admin/v2/brokers")) == len(names)
            return False

        wait_until(all_there, timeout_s, what="every broker has joined again")

    def _pause(self, shortest_s: float, longest_s: float) -> float:
        pause_s = self._rng.uniform(shortest_s, longest_s)
        time.sleep(pause_s)
        return pause_s

    def _owner(self, topic: str) -> str:
        return eventually(lambda: owner_of(self._cluster, topic))

    def _kill_owner(self, topic: str) -> str:
        owner = self._owner(topic)
        self._cluster.kill(owner)
        away_s = self._pause(0.0, 2 * self._session_s)
        self._cluster.start_again(owner)
        return f"{owner} of {topic}, away for {away_s:.1f} s"

    def _kill_leader(self, topic: str) -> str:
        url = eventually(lambda: get(f"{live_broker(self._cluster)}/admin/v2/brokers/leaderBroker")["serviceUrl"])
        leader = next(name for name in broker_names(self._cluster) if self._cluster.broker(name)[1] == url)
        self._cluster.kill(leader)
        away_s = self._pause(0.0, 2 * self._session_s)
        self._cluster.start_again(leader)
        return f"{leader}, away for {away_s:.1f} s"

    def _kill_twice(self, topic: str) -> str:
        """The second one goes while it may be taking over."""
        owner = self._owner(topic)
        other = self._rng.choice([name for name in broker_names(self._cluster) if name != owner])
        self._cluster.kill(owner)
        later_s = self._pause(0.5 * self._session_s, 1.5 * self._session_s)
        self._cluster.kill(other)
        self._pause(0.0, self._session_s)
        self._cluster.start_again(owner, other)
        return f"{owner} of {topic}, {other} {later_s:.1f} s later"

    def _zombie(self, topic: str) -> str:
        owner = self._owner(topic)
        self._cluster.pause(owner)
        paused_s = self._pause(1.2 * self._session_s, 2.5 * self._session_s)
        self._cluster.resume(owner)
        return f"{owner} of {topic} for {paused_s:.1f} s"

    def _stores(self) -> list[str]:
        """The metadata server, or every member of the ensemble."""
        return [name for name, status in self._cluster.status().items() if status.role in ("metadata", "zookeeper")]

    def _store(self, away_s: tuple[float, float]) -> str:
        stores = self._stores()
        self._cluster.kill(*stores)
        paused_s = self._pause(*away_s)
        self._cluster.start_again(*stores)
        return f"for {paused_s:.1f} s and its start"

    def _kill_member(self, topic: str) -> str:
        member = self._rng.choice(self._stores())
        self._cluster.kill(member)
        away_s = self._pause(0.0, 2 * self._session_s)
        self._cluster.start_again(member)
        return f"{member}, away for {away_s:.1f} s"

    def _pause_leader(self, topic: str) -> str:
        """The others elect a new one; the old one finds out when it goes on."""
        leader = eventually(self._leader)
        self._cluster.pause(leader)
        paused_s = self._pause(self._session_s, 3 * self._session_s)
        self._cluster.resume(leader)
        return f"{leader} for {paused_s:.1f} s"

    def _leader(self) -> str:
        """Raises StopIteration while the ensemble has no leader."""
        plan = self._cluster.cluster.plan
        return next(
            name
            for name in self._stores()
            if "Mode: leader" in four_letters("127.0.0.1", plan.find(name).ports["zk"], "srvr")
        )

    def _wipe_member(self, topic: str) -> str:
        """A member that comes back with an empty disk takes everything from the others."""
        member = self._rng.choice(self._stores())
        self._cluster.kill(member)
        shutil.rmtree(self._cluster.directory / member)
        self._cluster.start_again(member)
        return member

    def _store_blinks(self, topic: str) -> str:
        return self._store((0.0, 0.1 * self._session_s))

    def _store_leaves(self, topic: str) -> str:
        return self._store((1.2 * self._session_s, 2 * self._session_s))

    def _cut_off(self, topic: str) -> str:
        owner = self._owner(topic)
        self._cluster.proxies[owner].stall()
        paused_s = self._pause(1.2 * self._session_s, 2.5 * self._session_s)
        self._cluster.proxies[owner].heal()
        return f"{owner} of {topic} for {paused_s:.1f} s"

    def _cut_one_way(self, topic: str) -> str:
        owner, direction = self._owner(topic), self._direction()
        self._cluster.proxies[owner].stall(direction)
        paused_s = self._pause(1.2 * self._session_s, 2.5 * self._session_s)
        self._cluster.proxies[owner].heal()
        return f"{owner} of {topic} for {paused_s:.1f} s ({direction})"

    def _flap(self, topic: str) -> str:
        """Shorter and longer than what a session takes, one direction or both; connections go on, or are cut."""
        owner = self._owner(topic)
        proxy, ways = self._cluster.proxies[owner], []
        for _ in range(self._rng.randint(3, 8)):
            direction: Direction = self._rng.choice([self._direction(), "both"])
            proxy.stall(direction)
            paused_s = self._pause(0.05 * self._session_s, 1.1 * self._session_s)
            if self._rng.random() < 0.5:
                proxy.resume()
            else:
                proxy.heal()
            self._pause(0.0, 0.4 * self._session_s)
            ways.append(f"{direction} {paused_s:.1f}")
        return f"{owner} of {topic}: {', '.join(ways)} s"

    def _direction(self) -> Direction:
        return "up" if self._rng.random() < 0.5 else "down"

    def _drain(self, topic: str) -> str:
        owner = self._owner(topic)
        self._cluster.stop(owner)
        away_s = self._pause(0.0, self._session_s)
        self._cluster.start_again(owner)
        return f"{owner} of {topic}, away for {away_s:.1f} s"

    def _rolling_restart(self, topic: str) -> str:
        names = broker_names(self._cluster)
        self._rng.shuffle(names)
        for name in names:
            self._cluster.stop(name)
            self._cluster.start_again(name)
        return ", ".join(names)

    def _unload(self, topic: str) -> str:
        destination = self._rng.choice(["", *broker_names(self._cluster)])
        eventually(lambda: unload(self._cluster, topic, destination) or True)
        return f"the bundle of {topic} to {destination or 'anybody'}"

    def _split(self, topic: str) -> str:
        bundle = eventually(lambda: bundle_of(self._cluster, topic))
        and_unload = str(self._rng.random() < 0.5).lower()
        path = f"admin/v2/namespaces/public/default/{bundle}/split?unload={and_unload}"
        eventually(lambda: send("PUT", f"{live_broker(self._cluster)}/{path}"))
        return f"{bundle} of {topic}, unload={and_unload}"


def eventually(ask: Callable[[], T]) -> T:
    """The answer, once the cluster gives one: right after a fault nobody may lead for a moment."""
    deadline = time.monotonic() + LOOKUP_S
    while True:
        try:
            return ask()
        except (OSError, AssertionError, StopIteration) as error:
            if time.monotonic() > deadline:
                raise AssertionError(f"no answer within {LOOKUP_S:g} s: {error}") from error
            time.sleep(0.1)
