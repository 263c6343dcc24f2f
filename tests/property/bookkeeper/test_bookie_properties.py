"""A bookie against a model, over random histories of adds, fences, checkpoints, collections, deaths and restarts."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.base.errors import StorageError
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.codes import FLAG_RECOVERY_ADD, ReturnCode
from tests.unit.bookkeeper.bookie_helpers import (
    FaultDisk,
    Fuse,
    add,
    add_many,
    entry,
    fence,
    fused_index,
    open_bookie,
    read,
)

LEDGERS = 3
ENTRIES = 12


@dataclass
class Model:
    """What must be there (`certain`), what may be there (`possible`), which ledgers are fenced, which the metadata lists."""

    certain: dict[tuple[int, int], bytes] = field(default_factory=dict)
    possible: dict[tuple[int, int], set[bytes]] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    listed: set[int] = field(default_factory=lambda: set(range(LEDGERS)))

    def added(self, ledger_id: int, entry_id: int, packed: bytes, code: int) -> None:
        if code == ReturnCode.OK:
            assert ledger_id not in self.fenced
            self.certain[ledger_id, entry_id] = packed
        if code in (ReturnCode.OK, ReturnCode.IO_ERROR):
            self.possible.setdefault((ledger_id, entry_id), set()).add(packed)

    async def check(self, bookie: Bookie) -> None:
        for ledger_id in range(LEDGERS):
            for entry_id in range(ENTRIES):
                code, packed = await read(bookie, ledger_id, entry_id)
                where = (ledger_id, entry_id)
                if ledger_id not in self.listed:
                    assert code in (ReturnCode.NO_LEDGER, ReturnCode.OK, ReturnCode.NO_ENTRY)
                elif code == ReturnCode.OK:
                    assert packed in self.possible[where]
                    assert where not in self.certain or len(self.possible[where]) > 1 or packed == self.certain[where]
                else:
                    assert code in (ReturnCode.NO_ENTRY, ReturnCode.NO_LEDGER)
                    assert where not in self.certain
        for ledger_id in sorted(self.fenced):
            assert await add(bookie, ledger_id, ENTRIES) == ReturnCode.FENCED


step = st.one_of(
    st.tuples(st.just("add"), st.integers(0, LEDGERS - 1), st.integers(0, ENTRIES - 4), st.integers(1, 900)),
    st.tuples(st.just("readd"), st.integers(0, LEDGERS - 1), st.integers(0, ENTRIES - 1), st.integers(1, 50)),
    st.tuples(st.just("fence"), st.integers(0, LEDGERS - 1)),
    st.tuples(st.just("unlist"), st.integers(0, LEDGERS - 1)),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("collect")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("die"), st.integers(0, 25)),
)


async def play(path: Path, steps: list[tuple[object, ...]]) -> None:
    model = Model()

    async def listed() -> list[int]:
        return sorted(model.listed)

    remaining = list(steps)
    while True:
        fuse = Fuse()
        bookie = open_bookie(path, FaultDisk(fuse), index_factory=fused_index(fuse), list_ledgers=listed)
        async with bookie:
            await model.check(bookie)
            await run(bookie, model, fuse, remaining)
            if fuse.limit is None:
                await model.check(bookie)
        if not remaining:
            break
    for _ in range(2):
        async with open_bookie(path, list_ledgers=listed) as bookie:
            await model.check(bookie)


async def run(bookie: Bookie, model: Model, fuse: Fuse, remaining: list[tuple[object, ...]]) -> None:
    """Until the bookie is dead, a restart is asked for, or nothing remains."""
    while remaining:
        what, *values = remaining.pop(0)
        numbers = [int(str(value)) for value in values]
        if what == "restart" or bookie.failed is not None:
            break
        if what == "die":
            fuse.limit = fuse.limit or fuse.burnt + numbers[0]
        elif what == "add":
            ledger_id, first, size = numbers
            entry_ids = range(first, first + 4)
            codes = await add_many(bookie, ledger_id, entry_ids, b"x" * size)
            for entry_id, code in zip(entry_ids, codes, strict=True):
                model.added(ledger_id, entry_id, entry(ledger_id, entry_id, b"x" * size), code)
        elif what == "readd":
            ledger_id, entry_id, size = numbers
            code = await add(bookie, ledger_id, entry_id, b"y" * size, flags=FLAG_RECOVERY_ADD)
            packed = entry(ledger_id, entry_id, b"y" * size)
            if code in (ReturnCode.OK, ReturnCode.IO_ERROR):
                model.possible.setdefault((ledger_id, entry_id), set()).add(packed)
            if code == ReturnCode.OK:
                model.certain[ledger_id, entry_id] = packed
        elif what == "fence":
            code = await fence(bookie, numbers[0])
            if code in (ReturnCode.OK, ReturnCode.NO_ENTRY):
                model.fenced.add(numbers[0])
        elif what == "unlist":
            model.listed.discard(numbers[0])
            for where in [where for where in model.certain if where[0] == numbers[0]]:
                del model.certain[where]
            model.fenced.discard(numbers[0])
        elif what == "checkpoint":
            await bookie.checkpoint()
        else:
            model.fenced &= (
                model.listed
            )  # what the metadata does not know is forgotten, so that strangers leave nothing behind
            await bookie.collect_garbage()


@settings(max_examples=120, deadline=None)
@given(steps=st.lists(step, min_size=3, max_size=25))
def test_any_history(steps: list[tuple[object, ...]]) -> None:
    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as path:
            asyncio.run(play(Path(path), steps))
    except StorageError as error:
        raise AssertionError(f"a restart was refused: {error}") from error
    finally:
        logging.disable(logging.NOTSET)
