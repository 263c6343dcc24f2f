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
_KEY_SIZE = Struct(">H")
_FENCED: Final = 1
_DELETED: Final = 2
_KEYLESS: Final = 4

FENCED_KEYS_MAX: Final = 16
"""Keys under which one ledger without entries may be fenced: a fence under one more is refused with TOO_MANY_REQUESTS."""


class LedgerState:
    """One ledger. `lac` and `last_entry_id` cover what this process has seen added; the index knows the rest.

    The first entry fixes the master key, a fence does not: a bookie cannot tell whose fence it is before it has seen an entry of the
    ledger's owner. A fence that comes first is therefore remembered together with its key. It holds against every writer that shows
    the same key, which is what a recovery and the writer that it replaces have in common, and against nobody else.
    """

    __slots__ = (
        "deleted_ms",
        "explicit_lac",
        "fence_durable",
        "fenced",
        "fenced_keys",
        "lac",
        "lac_known",
        "last_entry_id",
        "ledger_id",
        "master_key",
        "watchers",
        "writable",
    )

    def __init__(self, ledger_id: int, master_key: bytes = b"") -> None:
        """Without a key: a ledger that is fenced under some key before its first entry."""
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
        self.writable = bool(master_key)
        """Has a key and is neither fenced nor deleted: the only thing that an ordinary add has to ask."""
        self.fenced_keys: dict[bytes, bool] | None = None if master_key else {}
        """Before the first entry: the keys under which the ledger was fenced, True where that is durable. None from then on."""

    @property
    def keyless(self) -> bool:
        """No entry has fixed the master key yet."""
        return self.fenced_keys is not None

    def fix_key(self, master_key: bytes) -> None:
        """The first entry is stored under this key. Fences under other keys are void."""
        assert self.fenced_keys is not None
        self.master_key = master_key
        self.writable = True
        fence_durable = self.fenced_keys.get(master_key)
        self.fenced_keys = None
        if fence_durable is not None:
            self.fence()
            self.fence_durable = fence_durable

    def fence_under(self, master_key: bytes, *, durable: bool) -> None:
        """Fence the ledger for whoever shows this key. The ledger has this key, or none yet."""
        if self.fenced_keys is not None:
            self.fenced_keys[master_key] = durable
        else:
            self.fence()
            self.fence_durable = durable

    def authorizes(self, master_key: bytes) -> bool:
        """True if this is the ledger's key."""
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
        keys = self.master_key
        if self.fenced_keys is not None:
            flags |= _KEYLESS
            keys = b"".join(_KEY_SIZE.pack(len(key)) + key for key in self.fenced_keys)
        return _HEAD.pack(flags, self.deleted_ms or 0, len(keys), len(lac)) + keys + lac


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
    keys = data[_HEAD.size : end]
    if flags & _KEYLESS:
        state = LedgerState(ledger_id)
        for key in _unpack_keys(ledger_id, keys):
            state.fence_under(key, durable=True)
        if flags & _DELETED:
            state.bury(deleted_ms)
        return state
    state = LedgerState(ledger_id, keys)
    if lac_bytes:
        state.accept_lac(data[end:])
    if flags & _FENCED:
        state.fence()
        state.fence_durable = True
    if flags & _DELETED:
        state.bury(deleted_ms)
    return state


def _unpack_keys(ledger_id: int, data: bytes) -> list[bytes]:
    keys = []
    while data:
        end = _KEY_SIZE.size + int.from_bytes(data[: _KEY_SIZE.size], "big")
        if end > len(data):
            raise CorruptionError(f"the index record of ledger {ledger_id} ends within a key")
        keys.append(data[_KEY_SIZE.size : end])
        data = data[end:]
    return keys
