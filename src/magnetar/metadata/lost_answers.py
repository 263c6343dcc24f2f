"""Writes whose answer may get lost: done or not, nobody can say, until one looks.

Only for nodes that nobody else writes, or whose value tells who wrote it: then what is found is one's own.
"""

from __future__ import annotations

from magnetar.base.errors import BadVersionError, MetadataError, NodeNotFoundError
from magnetar.metadata.store import MetadataStore


async def put_or_look(metadata: MetadataStore, path: str, value: bytes, expected_version: int) -> int:
    """Compare-and-set, or create with MUST_NOT_EXIST; the new version, also of a write that was done and not answered.

    Raises BadVersionError, and MetadataError when it was not done or the store cannot say.
    """
    try:
        return (await metadata.put(path, value, expected_version))[1]
    except BadVersionError:
        raise
    except MetadataError:
        node = await metadata.get(path)
        if node is None or node.version != expected_version + 1 or node.value != value:
            raise
        return node.version


async def delete_or_look(metadata: MetadataStore, path: str, expected_version: int | None = None) -> None:
    """Raises as `delete`, but not when it was done and not answered."""
    try:
        await metadata.delete(path, expected_version)
    except (BadVersionError, NodeNotFoundError):
        raise
    except MetadataError:
        if await metadata.exists(path):
            raise
