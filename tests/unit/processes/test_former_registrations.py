"""A process that starts again does not wait for its own ghost, and touches nobody else's nodes."""

from __future__ import annotations

import json

from magnetar.bookkeeper.service_info import service_info
from magnetar.broker.config import BrokerConfig
from magnetar.metadata import paths
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.processes.former_registrations import forget_former_bookie, forget_former_broker

OWN = service_info("127.0.0.1", 3181).to_bytes()


async def test_a_bookies_old_registration_goes_if_its_address_is_ours() -> None:
    tree = MemoryTree()
    dead, here = MemoryMetadataStore(tree), MemoryMetadataStore(tree)
    path, read_only = paths.available_bookie_path("b:1"), paths.read_only_bookie_path("b:1")
    for node in (path, read_only):
        await dead.put(node, OWN, ephemeral=True)
    await dead.put(paths.available_bookie_path("b:2"), OWN, ephemeral=True)
    await forget_former_bookie(here, "b:1", OWN)
    assert not await here.exists(path)
    assert not await here.exists(read_only)
    assert await here.exists(paths.available_bookie_path("b:2"))
    await dead.put(path, service_info("127.0.0.9", 3181).to_bytes(), ephemeral=True)
    await forget_former_bookie(here, "b:1", OWN)
    assert await here.exists(path), "somebody at another address has this id: that is a conflict, not a ghost"


async def test_a_brokers_old_bundles_go_and_no_other_brokers() -> None:
    tree = MemoryTree()
    dead, here = MemoryMetadataStore(tree), MemoryMetadataStore(tree)
    config = BrokerConfig(advertised_address="127.0.0.1", port=6650, http_port=8080)
    record = json.dumps({"nativeUrl": config.service_url, "httpUrl": config.web_service_url}).encode()
    other = json.dumps({"nativeUrl": "pulsar://127.0.0.2:6650", "disabled": False}).encode()
    bundle = "/namespace/public/default/0x00000000_0x40000000"
    await dead.put(bundle, record, ephemeral=True)
    await dead.put("/namespace/public/default/0x40000000_0x80000000", other, ephemeral=True)
    await dead.put(paths.LEADER_PATH, json.dumps({"serviceUrl": config.web_service_url}).encode(), ephemeral=True)
    await here.put(
        paths.broker_path("127.0.0.1:8080"),
        json.dumps({"webServiceUrl": config.web_service_url}).encode(),
        ephemeral=True,
    )
    await forget_former_broker(here, config)
    assert not await here.exists(bundle)
    assert not await here.exists(paths.LEADER_PATH)
    assert await here.exists("/namespace/public/default/0x40000000_0x80000000")
    assert await here.exists(paths.broker_path("127.0.0.1:8080")), "its own"
