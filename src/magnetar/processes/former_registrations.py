"""What a process left behind when it was killed: ephemeral nodes that outlive it until its session times out.

A process that has bound an address knows that whoever registered that address before is gone. Waiting for the end of a dead
session would only cost time: BookKeeper's bookies do wait.
"""

from __future__ import annotations

import json
import logging

from magnetar.base.errors import BadVersionError, NodeNotFoundError
from magnetar.broker.config import BrokerConfig
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore, Node

logger = logging.getLogger(__name__)


async def forget_former_bookie(metadata: MetadataStore, bookie_id: str, registration: bytes) -> None:
    """Delete the registration of an earlier process of this bookie, if it names the very same addresses.

    This process holds those addresses and the lock of the bookie's directories.
    """
    for path in (paths.available_bookie_path(bookie_id), paths.read_only_bookie_path(bookie_id)):
        node = await metadata.get(path)
        if node is not None and node.value == registration:
            await _forget(metadata, path, node)


async def forget_former_broker(metadata: MetadataStore, config: BrokerConfig) -> None:
    """Delete what an earlier broker with this one's addresses registered and owned."""
    own = {config.service_url, config.web_service_url}
    for path in [
        paths.LEADER_PATH,
        *[f"{paths.BROKERS_PATH}/{name}" for name in await metadata.children(paths.BROKERS_PATH)],
        *await _below(metadata, paths.NAMESPACE_OWNERSHIP_PATH, levels=3),
    ]:
        node = await metadata.get(path)
        if node is not None and own & _urls(node.value):
            await _forget(metadata, path, node)


async def _forget(metadata: MetadataStore, path: str, node: Node) -> None:
    if node.owner in (0, metadata.session_id):
        return
    try:
        await metadata.delete(path, node.version)
        logger.info("forgot what an earlier process left behind path=%s", path)
    except (BadVersionError, NodeNotFoundError):
        return  # its session has just ended, or somebody else took it


async def _below(metadata: MetadataStore, path: str, levels: int) -> list[str]:
    if not levels:
        return [path]
    found: list[str] = []
    for name in await metadata.children(path):
        found += await _below(metadata, f"{path}/{name}", levels - 1)
    return found


def _urls(value: bytes) -> set[str]:
    try:
        record = json.loads(value)
    except ValueError:
        return set()
    return {text for text in record.values() if isinstance(text, str)} if isinstance(record, dict) else set()
