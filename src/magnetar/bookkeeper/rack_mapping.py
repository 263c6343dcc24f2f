"""Where bookies stand: Pulsar's `/bookies` node, JSON of group -> bookie -> {rack, hostname}. Fields of others survive."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from magnetar.base.errors import BadVersionError, InvalidArgumentError
from magnetar.bookkeeper.errors import RackMappingError
from magnetar.metadata import paths
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore

DEFAULT_GROUP: Final = "default"

Mapping = dict[str, dict[str, dict[str, Any]]]
"""Group -> bookie id -> its document."""


def parse_mapping(data: bytes) -> Mapping:
    """Raises RackMappingError. Nothing at all is an empty mapping."""
    try:
        mapping = json.loads(data) if data.strip() else {}
    except ValueError as error:
        raise RackMappingError(f"{paths.BOOKIE_RACKS_PATH} is not JSON: {error}") from error
    groups = mapping.values() if isinstance(mapping, dict) else [None]
    if not all(isinstance(group, dict) and all(isinstance(one, dict) for one in group.values()) for group in groups):
        raise RackMappingError(f"{paths.BOOKIE_RACKS_PATH} is not of the form group -> bookie -> {{rack, hostname}}")
    return dict(mapping)


def locations_of(mapping: Mapping) -> dict[str, str]:
    """Bookie id -> `/rack` or `/region/rack`, as placement takes it."""
    found: dict[str, str] = {}
    for group in mapping.values():
        for bookie_id, document in group.items():
            rack = document.get("rack")
            if isinstance(rack, str) and rack.strip("/"):
                found[bookie_id] = "/" + rack.strip("/")
    return found


async def read_mapping(store: MetadataStore) -> Mapping:
    """Raises RackMappingError."""
    node = await store.get(paths.BOOKIE_RACKS_PATH)
    return {} if node is None else parse_mapping(node.value)


async def set_rack(
    store: MetadataStore, bookie_id: str, rack: str, *, group: str = DEFAULT_GROUP, hostname: str = ""
) -> None:
    """Put the bookie into a group and a rack; it leaves any other group. Raises InvalidArgumentError, RackMappingError."""
    if not rack.strip("/") or rack.strip("/").count("/") > 1 or "//" in rack:
        raise InvalidArgumentError(f"{rack!r} is not a place: write RACK, /RACK or /REGION/RACK")

    def change(mapping: Mapping) -> bool:
        before: dict[str, Any] = {}
        for members in mapping.values():
            before = members.pop(bookie_id, before)
        document = before | {"rack": rack, "hostname": hostname or before.get("hostname") or bookie_id}
        mapping.setdefault(group, {})[bookie_id] = document
        return True

    await _change(store, change)


async def delete_rack(store: MetadataStore, bookie_id: str) -> bool:
    """Forget where the bookie stands; False when that was not known. Raises RackMappingError."""

    def change(mapping: Mapping) -> bool:
        return any([members.pop(bookie_id, None) is not None for members in mapping.values()])

    return await _change(store, change)


async def _change(store: MetadataStore, change: Callable[[Mapping], bool]) -> bool:
    while True:
        node = await store.get(paths.BOOKIE_RACKS_PATH)
        mapping = {} if node is None else parse_mapping(node.value)
        if not change(mapping):
            return False
        remaining = {group: members for group, members in mapping.items() if members}
        try:
            version = MUST_NOT_EXIST if node is None else node.version
            await store.put(paths.BOOKIE_RACKS_PATH, json.dumps(remaining).encode(), version)
            return True
        except BadVersionError:
            continue  # somebody else changed it: change what is there now
