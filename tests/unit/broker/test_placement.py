"""The default placement, the index of owners and the list of brokers, over a metadata store in memory."""

from __future__ import annotations

import random

from magnetar.base.process_watch import LinuxProcessWatch
from magnetar.broker.namespaces.brokers import BrokerDirectory, Registration
from magnetar.broker.namespaces.finder import LeastBundles
from magnetar.broker.namespaces.ownership import OwnerIndex
from magnetar.broker.namespaces.records import BrokerAddress, BundleName, owner_record, parse_broker, parse_owner
from magnetar.broker.naming import NamespaceName
from magnetar.metadata import paths
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import Node

SPACE = NamespaceName("public", "default")


def address(number: int) -> BrokerAddress:
    return BrokerAddress(f"pulsar://host:{6650 + number}", "", f"http://host:{8080 + number}", "")


def bundle(number: int) -> BundleName:
    return BundleName(SPACE, f"0x{number:08x}_0x{number + 1:08x}")


async def test_a_bundle_goes_to_the_broker_with_the_fewest() -> None:
    store = MemoryMetadataStore()
    owners, brokers = OwnerIndex(store), BrokerDirectory(store)
    placement = LeastBundles(owners, brokers, random.Random(1))
    assert await placement.choose(SPACE, "0x0_0x1") is None
    for number in range(3):
        await Registration(store, address(number), LinuxProcessWatch()).register()
    assert await brokers.live() == ["host:8080", "host:8081", "host:8082"]
    for number in range(30):
        chosen = await placement.choose(SPACE, bundle(number).range)
        assert chosen is not None
        await store.put(bundle(number).path, owner_record(address(int(chosen[-1]))), ephemeral=True)
    assert [len(await owners.of_broker(f"host:808{number}")) for number in range(3)] == [10, 10, 10]
    await store.delete(bundle(0).path)
    (gone,) = {f"host:808{number}" for number in range(3) if len(await owners.of_broker(f"host:808{number}")) == 9}
    assert await placement.choose(SPACE, bundle(0).range) == gone
    assert await placement.choose(SPACE, bundle(0).range, excluded=[gone]) != gone
    everybody = await brokers.live()
    assert await placement.choose(SPACE, bundle(0).range, excluded=everybody) is None


async def test_a_registration_carries_the_load_and_goes() -> None:
    store = MemoryMetadataStore()
    brokers, own = BrokerDirectory(store), Registration(store, address(0), LinuxProcessWatch())
    await own.report({"cpu": {"usage": 1.0, "limit": 100.0}})
    assert await brokers.live() == []
    await own.register()
    node = await store.get(paths.broker_path("host:8080"))
    assert node is not None
    assert b'"cpu"' in node.value
    assert parse_broker(node.value) == address(0) == await brokers.get("host:8080")
    await own.withdraw()
    await own.withdraw()
    assert await brokers.live() == []


def test_owner_records_are_pulsars_and_say_who_follows() -> None:
    assert BundleName.of_path(bundle(7).path) == bundle(7)
    assert BundleName.of_path("/namespace/public/default") is None
    assert parse_owner(owner_record(address(0)), 5).address == address(0)
    leaving = parse_owner(owner_record(address(0), leaving=True, successor="host:8081"), 5)
    assert (leaving.leaving, leaving.successor, leaving.broker_id) == (True, "host:8081", "host:8080")
    assert parse_owner(b'{"nativeUrl":"pulsar://a:1","httpUrl":"http://a:2","disabled":false}', 1).broker_id == "a:2"
    assert parse_owner(b"nonsense", 1).broker_id == ""


async def test_a_load_report_has_one_node_read_again_not_all() -> None:
    class Counting(MemoryMetadataStore):
        reads = 0

        async def get(self, path: str) -> Node | None:
            self.reads += 1
            return await super().get(path)

    store = Counting()
    brokers = BrokerDirectory(store)
    registrations = [Registration(store, address(number), LinuxProcessWatch()) for number in range(20)]
    for registration in registrations:
        await registration.register()
    assert len(await brokers.live()) == 20
    store.reads = 0
    await registrations[3].report({"cpu": {}})
    assert len(await brokers.live()) == 20
    assert store.reads == 1
    await registrations[3].withdraw()
    assert "host:8083" not in await brokers.live()
