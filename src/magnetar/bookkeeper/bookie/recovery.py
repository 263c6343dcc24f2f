"""What a start does with the journal: everything above the checkpoint mark goes back into the write cache and the ledger states."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct

from magnetar.base.errors import CorruptionError
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.ledger_state import LedgerState, unpack_state
from magnetar.bookkeeper.bookie.storage.disk import Disk
from magnetar.bookkeeper.bookie.storage.journal_format import EXPLICIT_LAC, FENCE, KEY, special_content
from magnetar.bookkeeper.bookie.storage.journal_replay import ReplayResult, replay
from magnetar.bookkeeper.bookie.storage.storage import LedgerStorage
from magnetar.bookkeeper.bookie.storage.write_cache import CacheHalf

_IDS = Struct(">qq")
_IDS_LAC = Struct(">qqq")


@dataclass(slots=True)
class Recovered:
    """The bookie's memory after a start. `dirty`: ledgers whose state the index does not have yet."""

    ledgers: dict[int, LedgerState] = field(default_factory=dict)
    dirty: dict[int, LedgerState] = field(default_factory=dict)
    half: CacheHalf = field(default_factory=CacheHalf)
    journal: ReplayResult = field(default_factory=ReplayResult)
    suspects: tuple[int, ...] = ()
    """Ledgers that may have lost an entry with a last commit that cannot be read: those that it names, and, as its names may be what is
    damaged, those with entries in the journal before it. Other copies have to say."""


def recover(config: BookieConfig, disk: Disk, storage: LedgerStorage) -> Recovered:
    """Load the states and replay the journal. Blocks. Raises CorruptionError when acknowledged data would be missing."""
    recovered = Recovered()
    for ledger_id, packed in storage.index.states():
        recovered.ledgers[ledger_id] = unpack_state(ledger_id, packed)
    replayed: set[int] = set()
    for records in replay(disk, config.journal_path, storage.mark.sequence, recovered.journal):
        _apply(recovered, records)
        if recovered.journal.salvaged:
            _apply_salvaged(recovered)
        if recovered.half.size_bytes >= config.write_cache_bytes or recovered.journal.salvaged:
            storage.flush(recovered.half, [(key, state.pack()) for key, state in recovered.dirty.items()], None, None)
            replayed |= recovered.half.ledgers.keys()
            recovered.half = CacheHalf()
            recovered.dirty = {}
    if recovered.journal.torn_bytes:
        suspects = sorted(replayed | recovered.half.ledgers.keys() | recovered.journal.torn_ledgers)
        recovered.suspects = tuple(each for each in suspects if _is_live(recovered, each))
    return recovered


def _apply(recovered: Recovered, records: list[bytes]) -> None:
    ledgers, put, unpack = recovered.ledgers, recovered.half.put_run, _IDS.unpack_from
    for record in records:
        ledger_id, entry_id = unpack(record)
        state = ledgers.get(ledger_id)
        if entry_id < 0:
            _apply_special(recovered, ledger_id, entry_id, special_content(record), state)
        elif state is None:
            raise CorruptionError(f"the journal holds entry {entry_id} of ledger {ledger_id}, whose key is nowhere")
        elif state.deleted_ms is None:
            if state.keyless:
                _fix_only_key(state)
            put(ledger_id, entry_id, [record], len(record))
            _, _, lac = _IDS_LAC.unpack_from(record)
            if lac > state.lac:
                state.lac = lac
            if entry_id > state.last_entry_id:
                state.last_entry_id = entry_id


def _apply_salvaged(recovered: Recovered) -> None:
    """Entries of ledgers that are known and not deleted; a key in the same commit is not trusted."""
    journal = recovered.journal
    journal.salvaged = [record for record in journal.salvaged if _is_live(recovered, _IDS.unpack_from(record)[0])]
    _apply(recovered, journal.salvaged)


def _is_live(recovered: Recovered, ledger_id: int) -> bool:
    state = recovered.ledgers.get(ledger_id)
    return state is not None and state.deleted_ms is None


def _apply_special(recovered: Recovered, ledger_id: int, kind: int, content: bytes, state: LedgerState | None) -> None:
    if kind not in (KEY, FENCE, EXPLICIT_LAC):
        raise CorruptionError(
            f"the journal holds a record of an unknown kind {kind}: was it written by a newer magnetar?"
        )
    if state is None:
        if kind == EXPLICIT_LAC:
            raise CorruptionError(f"the journal holds an explicit LAC of ledger {ledger_id}, whose key is nowhere")
        state = recovered.ledgers[ledger_id] = LedgerState(ledger_id)
    elif state.deleted_ms is not None:
        return
    if kind == KEY:
        if state.keyless and content:
            state.fix_key(content)
    elif kind == FENCE:
        if state.keyless or state.authorizes(
            content
        ):  # not under the key of somebody else, who came before the first entry
            state.fence_under(content, durable=True)
    else:
        if state.keyless:
            _fix_only_key(state)
        state.accept_lac(content)
    recovered.dirty[ledger_id] = state


def _fix_only_key(state: LedgerState) -> None:
    """Journals of earlier versions have no record of the key behind a fence, which used to fix it. Raises CorruptionError."""
    keys = list(state.fenced_keys or ())
    if len(keys) != 1:
        raise CorruptionError(f"the journal holds entries of ledger {state.ledger_id}, whose key is nowhere")
    state.fix_key(keys[0])
