"""Why a key lies where it lies."""

from __future__ import annotations

from typing import Any

import numpy as np

from magnetar.hashing.analysis.schemes import RingScheme, Scheme
from magnetar.hashing.errors import HashingError


def explain(scheme: Scheme, key: str, count: int | None = None) -> dict[str, Any]:
    """Hash, neighbours on the circle, owner, heir of the owner; with `count` the first so many distinct nodes (rings only)."""
    hashed = scheme.hash([key])
    scheme.begin(1)
    owner = int(scheme.owners(hashed)[0])
    found: dict[str, Any] = {"hash": int(hashed[0]), "owner": scheme.members[owner] if owner >= 0 else None}
    found |= _neighbours(scheme, key, int(hashed[0]))
    if owner >= 0:
        found["successor"] = _heir(scheme, key, scheme.members[owner])
    if count is not None:
        if not isinstance(scheme, RingScheme):
            raise HashingError(f"{scheme.algorithm} has no order of further owners: ask ketama or crc32")
        found["owners"] = scheme.ring.get_n(key, count)
    return found


def _neighbours(scheme: Scheme, key: str, hashed: int) -> dict[str, Any]:
    if isinstance(scheme, RingScheme):
        placed = scheme.ring.explain(key)
        return {
            "previous_point": placed.previous_point,
            "previous_node": placed.previous_node,
            "point": placed.point,
            "node": placed.node,
        }
    arcs = scheme.arcs()
    if arcs is None:
        return {}
    starts, owners, size = arcs
    # The stretch of one owner around the key, and who holds the places next to it.
    position = int(np.searchsorted(starts, np.uint64(hashed), side="right")) - 1
    first = last = position
    while first > 0 and owners[first - 1] == owners[position]:
        first -= 1
    while last + 1 < len(owners) and owners[last + 1] == owners[position]:
        last += 1
    end = int(starts[last + 1]) - 1 if last + 1 < len(starts) else size - 1
    names = (*scheme.members, None)
    return {
        "range": f"{int(starts[first])}-{end}",
        "left_neighbour": names[owners[first - 1]] if first > 0 else None,
        "right_neighbour": names[owners[last + 1]] if last + 1 < len(owners) else None,
    }


def _heir(scheme: Scheme, key: str, owner: str) -> str | None:
    rest = {member: weight for member, weight in scheme.weights.items() if member != owner}
    if not rest:
        return None
    without = scheme.changed(rest)
    without.begin(1)
    index = int(without.owners(without.hash([key]))[0])
    return without.members[index] if index >= 0 else None
