"""The registry over real ledgers (bookies in memory): versions, deletion, races, restarts, Pulsar's bytes."""

from __future__ import annotations

import asyncio
import hashlib
import json

import pytest

from magnetar.base.errors import LedgerError
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.broker.errors import IncompatibleSchemaError
from magnetar.broker.naming import NamespaceName, TopicName
from magnetar.broker.schemas import registry as registry_module
from magnetar.broker.schemas import storage as storage_module
from magnetar.broker.schemas.compatibility import Strategy
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.schemas.storage import Quorum, SchemaStorage
from magnetar.broker.schemas.types import InvalidSchemaError, Schema, SchemaId, SchemaType
from magnetar.metadata.store import Node
from magnetar.wire.pulsar.SchemaStorage_pb2 import SchemaEntry, SchemaInfo, SchemaLocator
from tests.unit.bookkeeper.fake_bookies import Cluster
from tests.unit.bookkeeper.ledger_helpers import read
from tests.unit.managed_ledger.ledger_harness import HandClock

TOPIC = SchemaId.of(TopicName.parse("persistent://tenant/ns/a topic-partition-3"))


def avro(*names: str, default: bool = True) -> Schema:
    """A record of texts."""
    fields = [{"name": name, "type": "string"} | ({"default": ""} if default else {}) for name in names]
    return Schema(SchemaType.AVRO, json.dumps({"type": "record", "name": "R", "fields": fields}).encode(), {"p": "v"})


class RegistryHarness:
    def __init__(self) -> None:
        self.cluster = Cluster(1)
        self.metadata = self.cluster.metadata

    def broker(self, seed: int = 1) -> SchemaRegistry:
        """A broker that knows nothing of the others but what they stored."""
        storage = SchemaStorage(self.metadata, self.cluster.new_client(seed), HandClock(), Quorum())
        return SchemaRegistry(storage, self.metadata)

    async def locator(self) -> SchemaLocator:
        node = await self.metadata.get(TOPIC.path)
        assert isinstance(node, Node)
        return SchemaLocator.FromString(node.value)


@pytest.fixture
def harness() -> RegistryHarness:
    return RegistryHarness()


async def test_versions_count_up_and_the_same_schema_keeps_its_own(harness: RegistryHarness) -> None:
    registry = harness.broker()
    assert await registry.latest(TOPIC) is None
    assert await registry.put(TOPIC, avro("a"), Strategy.FULL) == 0
    assert await registry.put(TOPIC, avro("a", "b"), Strategy.FULL) == 1
    assert await registry.put(TOPIC, avro("a"), Strategy.FULL) == 0
    spaced = Schema(SchemaType.AVRO, json.dumps(json.loads(avro("a").data), indent=4).encode())
    assert await registry.put(TOPIC, spaced, Strategy.FULL) == 0
    latest = await registry.latest(TOPIC)
    assert latest is not None
    assert (latest.version, latest.schema) == (1, avro("a", "b"))
    assert await registry.find(TOPIC, avro("a")) == 0
    assert await registry.find(TOPIC, avro("x")) is None
    assert await registry.version(TOPIC, 2) is None
    assert await registry.version(TOPIC, -1) is None


async def test_another_broker_reads_what_is_stored_in_pulsars_form(harness: RegistryHarness) -> None:
    await harness.broker(1).put(TOPIC, avro("a"), Strategy.FULL)
    other = harness.broker(2)
    stored = await other.version(TOPIC, 0)
    assert stored is not None
    assert stored.schema == avro("a")
    assert await other.put(TOPIC, avro("a", "b"), Strategy.FULL) == 1

    assert TOPIC.path == "/schemas/tenant/ns/a+topic"
    locator = await harness.locator()
    assert locator.info == locator.index[1]
    assert [entry.hash for entry in locator.index] == [
        hashlib.sha256(schema.data).digest() for schema in (avro("a"), avro("a", "b"))
    ]
    client = harness.cluster.new_client(9)
    ledger_id = locator.index[1].position.ledgerId
    metadata = await client.read_metadata(ledger_id)
    assert metadata.custom_metadata == {
        "application": b"pulsar",
        "component": b"schema",
        "pulsar/schemaId": b"tenant/ns/a+topic",
    }
    entry = SchemaEntry.FromString((await read(await client.open_ledger(ledger_id, recover=False), 0, 0))[0])
    assert list(entry.index) == [locator.index[0]]
    info = SchemaInfo.FromString(entry.schema_data)
    assert (info.schema_id, info.type, info.deleted) == ("tenant/ns/a+topic", 5, False)


async def test_latest_only_and_transitive(harness: RegistryHarness) -> None:
    registry = harness.broker()
    for schema in (avro("a", default=False), avro("a"), avro("b")):
        await registry.put(TOPIC, schema, Strategy.BACKWARD)
    assert await registry.is_compatible(TOPIC, avro("b", "c"), Strategy.FULL)
    assert not await registry.is_compatible(TOPIC, avro("b", "c"), Strategy.FULL_TRANSITIVE)
    with pytest.raises(IncompatibleSchemaError, match="FULL_TRANSITIVE"):
        await registry.put(TOPIC, avro("b", "c"), Strategy.FULL_TRANSITIVE)
    assert await registry.is_compatible(TOPIC, avro("b", "c"), Strategy.BACKWARD_TRANSITIVE)


async def test_always_incompatible_still_takes_what_is_there(harness: RegistryHarness) -> None:
    registry = harness.broker()
    await registry.put(TOPIC, avro("a"), Strategy.ALWAYS_INCOMPATIBLE)
    assert await registry.put(TOPIC, avro("a"), Strategy.ALWAYS_INCOMPATIBLE) == 0
    await registry.check_consumer(TOPIC, avro("a"), Strategy.ALWAYS_INCOMPATIBLE)
    for attempt in (registry.put, registry.check_consumer):
        with pytest.raises(IncompatibleSchemaError):
            await attempt(TOPIC, avro("a", "b"), Strategy.ALWAYS_INCOMPATIBLE)
    assert await registry.put(TOPIC, Schema(SchemaType.STRING), Strategy.ALWAYS_COMPATIBLE) == 1


async def test_without_permission_to_add_only_what_is_there_passes(harness: RegistryHarness) -> None:
    registry = harness.broker()
    with pytest.raises(IncompatibleSchemaError, match="auto updating"):
        await registry.put(TOPIC, avro("a"), Strategy.FULL, may_add=False)
    await registry.put(TOPIC, avro("a"), Strategy.FULL)
    assert await registry.put(TOPIC, avro("a"), Strategy.FULL, may_add=False) == 0


async def test_deletion_is_a_version_after_which_all_begins_anew(harness: RegistryHarness) -> None:
    registry = harness.broker()
    assert await registry.delete(TOPIC) is None
    await registry.put(TOPIC, avro("a"), Strategy.FULL)
    assert await registry.delete(TOPIC) == 1
    for broker in (registry, harness.broker(2)):
        assert await broker.latest(TOPIC) is None
        assert await broker.living(TOPIC) == []
        assert not await broker.exists(TOPIC)
        assert await broker.version(TOPIC, 1) is None
        assert await broker.version(TOPIC, 0) is None, "nothing from before a deletion can be read"
        deletion = await broker.latest_or_deletion(TOPIC)
        assert deletion is not None
        assert (deletion.version, deletion.schema.type, deletion.deleted) == (1, SchemaType.NONE, True)
        with pytest.raises(IncompatibleSchemaError):
            await broker.check_consumer(TOPIC, avro("a"), Strategy.FULL)
    assert await registry.delete(TOPIC) == 2
    assert await registry.put(TOPIC, Schema(SchemaType.STRING), Strategy.FULL) == 3
    assert [stored.version for stored in await registry.living(TOPIC)] == [3]


async def test_forced_deletion_leaves_nothing(harness: RegistryHarness) -> None:
    registry = harness.broker()
    for schema in (avro("a"), avro("a", "b")):
        await registry.put(TOPIC, schema, Strategy.FULL)
    ledgers = [entry.position.ledgerId for entry in (await harness.locator()).index]
    assert await registry.delete(TOPIC, force=True) == 1
    assert await registry.delete(TOPIC, force=True) is None
    assert not await harness.metadata.exists(TOPIC.path)
    for ledger_id in ledgers:
        with pytest.raises(NoSuchLedgerError):
            await harness.cluster.client.read_metadata(ledger_id)
    assert await registry.put(TOPIC, avro("x"), Strategy.FULL) == 0


async def test_a_namespace_goes_with_its_schemas(harness: RegistryHarness) -> None:
    registry = harness.broker()
    ids = [SchemaId("tenant", namespace, topic) for namespace in ("ns", "other") for topic in ("a b", "c")]
    for schema_id in ids:
        await registry.put(schema_id, avro("a"), Strategy.FULL)
    await registry.delete_namespace(NamespaceName("tenant", "ns"))
    assert [await registry.exists(schema_id) for schema_id in ids] == [False, False, True, True]


async def test_many_producers_with_the_same_new_schema_make_one_version(harness: RegistryHarness) -> None:
    brokers = [harness.broker(seed) for seed in (1, 2)]
    versions = await asyncio.gather(*(brokers[n % 2].put(TOPIC, avro("a"), Strategy.FULL) for n in range(20)))
    assert versions == [0] * 20
    assert len((await harness.locator()).index) == 1


async def test_brokers_that_add_at_once_do_not_lose_each_others_versions(harness: RegistryHarness) -> None:
    brokers = [harness.broker(seed) for seed in (1, 2)]
    schemas = [avro("a", f"b{n}") for n in range(10)]
    versions = await asyncio.gather(
        *(brokers[n % 2].put(TOPIC, schema, Strategy.FULL) for n, schema in enumerate(schemas))
    )
    assert sorted(versions) == list(range(10))
    found = [await brokers[0].version(TOPIC, version) for version in versions]
    assert [stored.schema for stored in found if stored is not None] == schemas


async def test_ledgers_of_lost_races_are_deleted(harness: RegistryHarness) -> None:
    brokers = [harness.broker(seed) for seed in (1, 2)]
    await asyncio.gather(*(brokers[n % 2].put(TOPIC, avro("a", f"b{n}"), Strategy.FULL) for n in range(6)))
    kept = {entry.position.ledgerId for entry in (await harness.locator()).index}
    for ledger_id in range(max(kept) + 5):
        assert await harness.cluster.client.ledger_exists(ledger_id) is (ledger_id in kept)


async def test_the_number_of_versions_is_bounded(harness: RegistryHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "VERSIONS_MAX", 2)
    registry = harness.broker()
    for name in ("a", "b"):
        await registry.put(TOPIC, avro(name), Strategy.FULL)
    with pytest.raises(IncompatibleSchemaError, match="delete it with force"):
        await registry.put(TOPIC, avro("c"), Strategy.FULL)


async def test_the_cache_is_bounded_and_only_a_cache(harness: RegistryHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "SCHEMA_CACHE_BYTES_MAX", 200)
    storage = SchemaStorage(harness.metadata, harness.cluster.client, HandClock(), Quorum())
    registry = SchemaRegistry(storage, harness.metadata)
    schemas = [avro("a", f"b{n}") for n in range(5)]
    for schema in schemas:
        await registry.put(TOPIC, schema, Strategy.FULL)
    assert [stored.schema for stored in await registry.living(TOPIC)] == schemas
    assert sum(len(stored.schema.data) for stored in storage._cache.values()) <= 200


@pytest.mark.parametrize("kind", [SchemaType.BYTES, SchemaType.AUTO_CONSUME])
async def test_what_says_nothing_is_not_stored(harness: RegistryHarness, kind: SchemaType) -> None:
    with pytest.raises(InvalidSchemaError):
        await harness.broker().put(TOPIC, Schema(kind), Strategy.FULL)


async def test_none_is_a_type_like_any_other(harness: RegistryHarness) -> None:
    """The Go client's schema of bytes: Pulsar gives it a version, and lets no other type follow."""
    registry = harness.broker()
    assert await registry.put(TOPIC, Schema(SchemaType.NONE), Strategy.FULL) == 0
    assert await registry.put(TOPIC, Schema(SchemaType.NONE), Strategy.FULL) == 0
    stored = await registry.version(TOPIC, 0)
    assert stored is not None
    assert (stored.schema.type, stored.deleted) == (SchemaType.NONE, False)
    with pytest.raises(IncompatibleSchemaError):
        await registry.put(TOPIC, Schema(SchemaType.STRING), Strategy.FULL)


async def test_a_failed_write_leaves_no_version(harness: RegistryHarness) -> None:
    registry = harness.broker()
    await registry.put(TOPIC, avro("a"), Strategy.FULL)
    harness.cluster.bookies[0].add_code = ReturnCode.IO_ERROR
    with pytest.raises(LedgerError):
        await registry.put(TOPIC, avro("a", "b"), Strategy.FULL)
    harness.cluster.bookies[0].add_code = None
    assert await registry.put(TOPIC, avro("a", "c"), Strategy.FULL) == 1
