"""The load manager's parts over a metadata store in memory: what is read, who is chosen, how orders are carried out."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from magnetar.base.clock import SystemClock
from magnetar.base.process_watch import LinuxProcessWatch
from magnetar.base.tasks import TaskScope
from magnetar.broker.config import BrokerConfig
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.load_balance.cooldown import LeaderMemory
from magnetar.broker.load_balance.load_report import BrokerLoad, BundleLoad, Usage, report_document
from magnetar.broker.load_balance.plan import Plan
from magnetar.broker.load_balance.shedding import Move
from magnetar.broker.load_balance.splitting import Split
from magnetar.broker.load_manager.bundle_loads import BundleIndex
from magnetar.broker.load_manager.cluster_reader import ClusterReader
from magnetar.broker.load_manager.manager import LoadPlacement, PastMoves
from magnetar.broker.load_manager.orders import Executor, give_orders
from magnetar.broker.load_manager.reporter import HostUsage
from magnetar.broker.namespaces.brokers import BrokerDirectory, Registration
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.namespaces.ownership import OwnerIndex
from magnetar.broker.namespaces.records import BrokerAddress, BundleName, owner_record
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.namespaces.topic_lists import TooManyTopicsError, TopicCounts
from magnetar.broker.naming import NamespaceName, TopicName
from magnetar.metadata import paths
from magnetar.metadata.memory import MemoryMetadataStore

SPACE = NamespaceName("public", "default")
HALVES = ("0x00000000_0x80000000", "0x80000000_0xffffffff")


def address(number: int) -> BrokerAddress:
    return BrokerAddress(f"pulsar://host:{6650 + number}", "", f"http://host:{8080 + number}", "")


async def harness(brokers: int) -> tuple[MemoryMetadataStore, LoadPlacement, list[Registration]]:
    """So many registered brokers, `public/default`, and a placement."""
    store = MemoryMetadataStore()
    namespaces = NamespaceRegistry(store, BrokerConfig())
    await namespaces.create_defaults()
    registrations = [Registration(store, address(number), LinuxProcessWatch()) for number in range(brokers)]
    for registration in registrations:
        await registration.register()
    reader = ClusterReader(store, BrokerDirectory(store), OwnerIndex(store), namespaces, "standalone")
    return (
        store,
        LoadPlacement(reader, LeaderMemory(), BrokerConfig(), SystemClock(), random.Random(3)),
        registrations,
    )


def report(cpu: float, **bundles: float) -> dict[str, object]:
    """`half0=100.0`: the lower half of public/default is there, at so many messages a second in."""
    loads = {f"{SPACE}/{HALVES[int(name[-1])]}": BundleLoad(rate, 0, rate, 0, 5) for name, rate in bundles.items()}
    return report_document(BrokerLoad(cpu=Usage(cpu, 100), bundles=loads, updated_ms=1), {})


async def test_bundles_asked_for_together_go_to_different_brokers() -> None:
    _, placement, _ = await harness(4)
    ranges = [f"0x{number:08x}_0x{number + 1:08x}" for number in range(8)]
    chosen = await asyncio.gather(*(placement.choose(SPACE, each) for each in ranges))
    assert sorted(map(str, chosen)) == [f"host:{8080 + number // 2}" for number in range(8)]
    assert await placement.choose(SPACE, ranges[0]) == chosen[0], "asked again, the answer stays"


async def test_a_bundle_with_a_quota_counts_before_it_was_ever_seen() -> None:
    store, placement, _ = await harness(2)
    heavy = "0x00000000_0x00000001"
    await store.put(paths.resource_quota_path("public", "default", heavy), b'{"msgRateIn": 500, "bandwidthIn": 9000}')
    chosen = await placement.choose(SPACE, heavy)
    view = await placement.view()
    assert view.placed == {f"{SPACE}/{heavy}": (chosen, BundleLoad(500.0, 0.0, 9000.0))}


async def test_a_view_has_owners_where_reports_are_late() -> None:
    store, placement, (first, second) = await harness(2)
    for number, half in enumerate(HALVES):
        await store.put(BundleName(SPACE, half).path, owner_record(address(number)), ephemeral=True)
    await first.report(report(40, half0=100.0, half1=900.0))  # written before half1 went to the other broker
    view = await placement.view()
    assert list(view.brokers["host:8080"].bundles) == [f"{SPACE}/{HALVES[0]}"]
    assert view.placed[f"{SPACE}/{HALVES[1]}"][0] == "host:8081"
    assert view.placed[f"{SPACE}/{HALVES[1]}"][1].rate == 900, "what it carried at its last owner"
    await second.report(report(50, half1=950.0))
    view = await placement.view()
    assert view.placed == {}
    assert view.brokers["host:8081"].rate == 950
    assert view.brokers["host:8081"].cpu.percent == 50
    await second.withdraw()
    assert list((await placement.view()).brokers) == ["host:8080"]


async def test_isolation_and_groups_are_read_when_they_change() -> None:
    store, placement, _ = await harness(2)
    assert await placement.choose(SPACE, HALVES[0]) is not None
    policy = {
        "namespaces": ["public/.*"],
        "primary": ["elsewhere"],
        "auto_failover_policy": {"parameters": {"min_limit": "1"}},
    }
    await store.put(paths.isolation_policies_path("standalone"), json.dumps({"p": policy}).encode())
    with pytest.raises(ServiceNotReadyError, match="isolation policy p names no broker that is there"):
        await placement.choose(SPACE, HALVES[1])
    assert await placement.choose(SPACE, HALVES[1], ["host:8080"]) is None
    await store.put(paths.failure_domain_path("standalone", "rack"), b'{"brokers":["host:8081"]}')
    local = paths.local_policies_path(SPACE.tenant, SPACE.namespace)
    node = await store.get(local)
    assert node is not None
    await store.put(local, json.dumps({**json.loads(node.value), "namespaceAntiAffinityGroup": "g"}).encode())
    isolation = (await placement.view(SPACE)).isolation
    assert isolation.domains == {"host:8081": "rack"}
    assert isolation.groups == {str(SPACE): "g"}


class Recorded:
    """Stands for the broker's own bundles."""

    def __init__(self) -> None:
        self.done: list[tuple[str, ...]] = []

    async def unload(self, bundle: BundleName, destination: str = "") -> None:
        self.done.append(("unload", str(bundle), destination))

    async def split_by(self, bundle: BundleName, algorithm: str) -> None:
        if bundle.range == HALVES[1]:
            raise PreconditionFailedError("too narrow")
        self.done.append(("split", str(bundle), algorithm))


async def test_orders_reach_their_owner_once_and_one_that_fails_stops_no_other() -> None:
    store = MemoryMetadataStore()
    load = BundleLoad()
    low, high = (f"{SPACE}/{half}" for half in HALVES)
    plan = Plan(
        (Move(low, "host:8080", "host:8081", load, 1.0, "why"), Move(high, "host:9", "host:8080", load, 1.0, "why")),
        (Split(high, "host:8080", "a", load, "why"), Split(low, "host:8080", "b", load, "why")),
    )
    await give_orders(store, plan)
    bundles = Recorded()
    async with TaskScope("test") as scope:
        executor = Executor(store, "host:8080", bundles, scope)
        await executor.start()
        assert await store.get(paths.load_orders_path("host:8080")) is None, "meant for an earlier process"
        assert bundles.done == []
        await give_orders(store, plan)
        while len(bundles.done) < 2:
            await asyncio.sleep(0.001)
        await store.put(paths.load_orders_path("host:8080"), b"[nonsense")
        await give_orders(store, plan)
        while len(bundles.done) < 4:
            await asyncio.sleep(0.001)
        executor.close()
    assert bundles.done == 2 * [("split", low, "b"), ("unload", low, "host:8081")]
    assert (executor.splits, executor.unloads) == (2, 2)
    assert await store.get(paths.load_orders_path("host:8080")) is None
    assert await store.get(paths.load_orders_path("host:9")) is not None, "another broker's"


async def test_past_moves_are_there_for_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryMetadataStore()
    assert await PastMoves(store, SystemClock()).read() == {}
    await PastMoves(store, SystemClock()).write({"a": 0.0, "b": 60.0, "c": 1700.0})
    found = await PastMoves(store, SystemClock()).read()
    assert {name: round(age_s, -1) for name, age_s in found.items()} == {"a": 0, "b": 60, "c": 1700}
    monkeypatch.setattr("magnetar.broker.load_manager.manager.REMEMBERED_MAX", 2)
    await PastMoves(store, SystemClock()).write({"c": 1700.0, "a": 0.0, "b": 60.0})
    assert sorted(await PastMoves(store, SystemClock()).read()) == ["a", "b"], "the latest"
    await store.put(paths.LOAD_MOVES_PATH, b"[nonsense")
    assert await PastMoves(store, SystemClock()).read() == {}


async def test_topics_are_counted_without_those_of_the_server() -> None:
    store = MemoryMetadataStore()
    counts = TopicCounts(store)

    async def put(name: str) -> None:
        await store.put(paths.managed_ledger_path("public", "default", "persistent", name), b"")

    assert await counts.stored(SPACE) == 0
    for name in ("a", "b", "__change_events", "a-s__transaction_pending_ack"):
        await put(name)
    assert await counts.stored(SPACE) == 2
    await put("c")
    assert await counts.stored(SPACE) == 3
    await store.delete(paths.managed_ledger_path("public", "default", "persistent", "__change_events"))
    assert await counts.stored(SPACE) == 3
    counts.close()


async def test_a_list_that_would_outlast_a_session_is_refused_and_counts_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(MemoryMetadataStore):
        @property
        def session_timeout_s(self) -> float:
            return 2.0

    monkeypatch.setattr("magnetar.broker.namespaces.topic_lists.LISTED_MAX", 3)
    store = Elsewhere()
    namespaces, counts = NamespaceRegistry(store, BrokerConfig()), TopicCounts(store)
    for name in ("__own", "a", "b"):
        await namespaces.register(TopicName.parse(name))
    assert len(await namespaces.persistent_topics(SPACE)) == 3
    assert await counts.stored(SPACE) == 2
    await namespaces.register(TopicName.parse("c"))
    with pytest.raises(TooManyTopicsError, match="use smaller namespaces"):
        await namespaces.persistent_topics(SPACE)
    assert await counts.stored(SPACE) == 3
    assert await TopicCounts(store).stored(SPACE) == 4, "not listed: the server's own counts, too"


def test_held_bundles_of_topics() -> None:
    held = [BundleName(SPACE, "0x40000000_0x80000000"), BundleName(SPACE, "0xc0000000_0xffffffff")]
    index = BundleIndex(held)
    found = {index.find(TopicName.parse(f"t-{number}")) for number in range(200)}
    assert found == {None, *held}
    assert index.find(TopicName.parse("other/space/t")) is None


def test_the_host_is_measured_from_proc(tmp_path: Path) -> None:
    class Clock(SystemClock):
        now_s = 0.0

        def monotonic_s(self) -> float:
            return self.now_s

    (tmp_path / "net").mkdir()
    (tmp_path / "self").mkdir()
    head = "Inter-|\n face |\n    lo: 9 0 0 0 0 0 0 0 9 0 0 0 0 0 0 0\n"
    (tmp_path / "net/dev").write_text(head + "  eth0: 1000 0 0 0 0 0 0 0 2000 0 0 0 0 0 0 0\n")
    (tmp_path / "self/statm").write_text("100 50 1 1 1 1 1\n")
    clock = Clock()
    host = HostUsage(clock, 1.0, tmp_path)
    (tmp_path / "net/dev").write_text(head + "  eth0: 126000 0 0 0 0 0 0 0 2000 0 0 0 0 0 0 0\n")
    clock.now_s = 0.5
    assert (host.sample().bandwidth_in.usage, host.sample().cpu.usage) == (0, 0), "too soon to say"
    clock.now_s = 1.0
    load = host.sample()
    assert (load.bandwidth_in, load.bandwidth_out) == (Usage(1000.0, 1_000_000.0), Usage(0.0, 1_000_000.0))
    assert load.memory.usage == 50 * 4096 / 1024 / 1024
    assert load.cpu.limit == 100
    missing = HostUsage(clock, 0.0, tmp_path / "none").sample()
    assert missing.bandwidth_in.usage == 0
    assert missing.bandwidth_in.limit > 0
