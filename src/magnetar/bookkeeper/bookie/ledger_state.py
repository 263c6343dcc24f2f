"""What a bookie knows of one ledger besides its entries: master key, fence, explicit LAC, tombstone. All of them fit in memory.

Everything here is journaled before it is answered, and written to the index by the checkpoint that lets the journal go.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from struct import Struct
from typing import Final

from magnetar.base.errors import CorruptionError

_HEAD = Struct(">BqHH")
_FENCED: Final = 1
_DELETED: Final = 2


class LedgerState:
    """One ledger. `lac` and `last_entry_id` cover what this process has seen added; the index knows the rest."""

    __slots__ = (
        "deleted_ms",
        "explicit_lac",
        "fence_durable",
        "fenced",
        "lac",
        "lac_known",
        "last_entry_id",
        "ledger_id",
        "master_key",
        "watchers",
        "writable",
    )

    def __init__(self, ledger_id: int, master_key: bytes) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.fenced = False
        self.fence_durable = False
        self.explicit_lac: bytes | None = None
        self.deleted_ms: int | None = None
        self.lac = -1
        self.lac_known = False
        """`lac` is the highest of all entries held, also of those in the index."""
        self.last_entry_id = -1
        self.watchers: list[Callable[[], None]] | None = None
        """Who waits for the LAC to move, or for a fence or the deletion."""
        self.writable = True
        """Neither fenced nor deleted: the only thing that an ordinary add has to ask."""

    def authorizes(self, master_key: bytes) -> bool:
        """Is this the ledger's key?"""
        return hmac.compare_digest(self.master_key, master_key)

    def fence(self) -> None:
        self.fenced = True
        self.writable = False

    def bury(self, now_ms: int) -> None:
        """The ledger is deleted; what remains refuses late writes."""
        self.deleted_ms = now_ms
        self.explicit_lac = None
        self.fence()

    def accept_lac(self, body: bytes) -> None:
        """Keep the explicit LAC unless a higher one is known (its LAC is at offset 8)."""
        lac = lac_of(body)
        if self.explicit_lac is None or lac >= lac_of(self.explicit_lac):
            self.explicit_lac = body
        self.lac = max(self.lac, lac)

    def pack(self) -> bytes:
        """For the index."""
        flags = (_FENCED if self.fenced else 0) | (_DELETED if self.deleted_ms is not None else 0)
        lac = self.explicit_lac or b""
        return _HEAD.pack(flags, self.deleted_ms or 0, len(self.master_key), len(lac)) + self.master_key + lac


def lac_of(body: bytes) -> int:
    """The LAC in the body of an explicit LAC."""
    return int.from_bytes(body[8:16], "big", signed=True)


def unpack_state(ledger_id: int, data: bytes) -> LedgerState:
    """The reverse of `pack`. Raises CorruptionError."""
    if len(data) < _HEAD.size:
        raise CorruptionError(f"the index record of ledger {ledger_id} is too short")
    flags, deleted_ms, key_bytes, lac_bytes = _HEAD.unpack_from(data)
    if len(data) != _HEAD.size + key_bytes + lac_bytes:
        raise CorruptionError(f"the index record of ledger {ledger_id} has the wrong length")
    end = _HEAD.size + key_bytes
    state = LedgerState(ledger_id, data[_HEAD.size : end])
    if lac_bytes:
        state.accept_lac(data[end:])
    if flags & _FENCED:
        state.fence()
        state.fence_durable = True
    if flags & _DELETED:
        state.bury(deleted_ms)
    return state
