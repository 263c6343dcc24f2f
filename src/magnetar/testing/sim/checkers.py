"""The promises, each with its checker. Some check while the run is under way, some check what is left afterwards."""

from __future__ import annotations

from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.metadata import paths
from magnetar.testing.sim.history import History, LedgerHistory
from magnetar.testing.sim.loop import Process
from magnetar.testing.sim.metadata import MetadataService, run_now

LOST = "acknowledged entries are there"
BYTES = "entries hold what was sent"
CLOSED = "a closed ledger never changes"
LATE_ACK = "nothing is acknowledged after the ledger was closed below it"
LAC = "the LAC covers confirmed entries only and never goes back"
METADATA = "segments ascend and states advance"
GONE = "a ledger exists until it is deleted"
LENGTH = "a closed ledger knows its length"
DURABLE = "an acknowledged entry is durable on Qa bookies of its ensemble"
REPAIRED = "after repair every acknowledged entry is on Qw bookies"
READABLE = "all is readable after healing"
LIVE = "all goes on after healing"
CRASH = "no unhandled errors"


class Checkers:
    """`history` is what they compare with; the metadata service is looked at directly."""

    def __init__(self, history: History, service: MetadataService) -> None:
        self.history = history
        self._service = service
        self._loop = service.wires.loop
        self._metadata: dict[str, LedgerMetadata] = {}
        self._ids: dict[str, int] = {}
        service.on_change = self._changed

    # ---- What clients report

    def sent(self, ledger: LedgerHistory, entry_id: int, payload: bytes, lac: int) -> None:
        ledger.carried[entry_id] = lac
        self.history.sent_total += 1
        if ledger.sent.setdefault(entry_id, payload) != payload:
            self._violate(BYTES, f"{ledger.ledger_id}: entry {entry_id} was given out twice")

    def acked(self, ledger: LedgerHistory, entry_id: int, lac: int) -> None:
        """Checks that entries are acknowledged in order, and never behind the end of a closed ledger."""
        expected = ledger.last_acked + 1
        if entry_id != expected:
            self._violate(LAC, f"{ledger.ledger_id}: entry {entry_id} is acknowledged, {expected} would be next")
        if lac < entry_id:
            self._violate(LAC, f"{ledger.ledger_id}: entry {entry_id} is acknowledged while the LAC is {lac}")
        ledger.acked[entry_id] = self._loop.now_s
        trace = self._loop.trace
        trace.mix = (trace.mix * 31 + ledger.ledger_id * 7919 + entry_id) & 0xFFFFFFFFFFFF
        metadata = self.metadata(ledger.ledger_id)
        if metadata is not None and metadata.state is LedgerState.CLOSED and metadata.last_entry_id < entry_id:
            self._violate(
                LATE_ACK,
                f"{ledger.ledger_id}: entry {entry_id} is acknowledged, closed at {metadata.last_entry_id}",
            )

    def closed(self, ledger: LedgerHistory, last_entry_id: int, length: int) -> None:
        """A client was told that the ledger is closed."""
        if last_entry_id < ledger.last_acked:
            self._violate(LOST, f"{ledger.ledger_id}: closed at {last_entry_id}, {ledger.last_acked} was acknowledged")
        expected = sum(len(ledger.sent[entry_id]) for entry_id in range(last_entry_id + 1) if entry_id in ledger.sent)
        if length != expected:
            self._violate(LENGTH, f"{ledger.ledger_id}: closed at {last_entry_id} with length {length}, not {expected}")
        metadata = self.metadata(ledger.ledger_id)
        if metadata is not None and (metadata.last_entry_id, metadata.length) != (last_entry_id, length):
            self._violate(
                CLOSED,
                f"{ledger.ledger_id}: a client was told {last_entry_id}, length {length}; the metadata says "
                f"{metadata.state.name} {metadata.last_entry_id}, length {metadata.length}",
            )

    def open_read(self, ledger: LedgerHistory, lac: int, floor: int) -> None:
        """A client opened the ledger without closing it. `floor`: what the bookies were told before it asked."""
        if lac < floor:
            self._violate(LAC, f"{ledger.ledger_id}: a reader sees LAC {lac}, the bookies had been told {floor}")
        if lac > ledger.last_acked:
            self._violate(LAC, f"{ledger.ledger_id}: a reader sees LAC {lac}, confirmed is {ledger.last_acked}")
        ledger.highest_lac = max(ledger.highest_lac, lac)

    def read(self, ledger: LedgerHistory, first: int, payloads: list[bytes]) -> None:
        for entry_id, payload in enumerate(payloads, first):
            if ledger.sent.get(entry_id) != payload:
                self._violate(BYTES, f"{ledger.ledger_id}: entry {entry_id} reads {payload[:40]!r}")

    def gone(self, ledger: LedgerHistory) -> None:
        if not ledger.deleted:
            self._violate(GONE, f"{ledger.ledger_id}: nobody deleted it")

    # ---- What the metadata service sees

    def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """The metadata as stored now."""
        return self._metadata.get(paths.ledger_path(ledger_id))

    def _changed(self, process: Process, operation: str, path: str) -> None:
        if not path.startswith("/ledgers/") or not path.rpartition("/")[2].startswith("L"):
            return
        if path.startswith("/ledgers/underreplication") or path == paths.LAYOUT_PATH:
            return
        before = self._metadata.get(path)
        node = run_now(self._service.eyes.get(path))
        if node is None:
            self._metadata.pop(path, None)
            return
        after = self._metadata[path] = LedgerMetadata.from_bytes(node.value)
        if before is not None:
            problem = step_problem(before, after)
            if problem is not None:
                self._violate(METADATA, f"{path} by {process}: {problem}")

    def _violate(self, checker: str, text: str) -> None:
        self._loop.trace.add(self._loop.now_s, "checker", f"{checker}: {text}")
        self.history.violate(checker, text, self._loop.now_s)


def step_problem(before: LedgerMetadata, after: LedgerMetadata) -> str | None:
    """The rule that a change of a ledger's metadata breaks; None if it breaks none."""
    if after.state < before.state:
        return f"{before.state.name} became {after.state.name}"
    if before.state is LedgerState.CLOSED and (before.last_entry_id, before.length) != (
        after.last_entry_id,
        after.length,
    ):
        return f"the end moved from {before.last_entry_id}/{before.length} to {after.last_entry_id}/{after.length}"
    starts = [segment.first_entry_id for segment in after.segments]
    if starts != sorted(set(starts)):
        return f"segments start at {starts}"
    kept = [segment.first_entry_id for segment in before.segments]
    if starts[: len(kept)] != kept:
        return f"segments that started at {kept} start at {starts}"
    for segment in after.segments:
        if len(set(segment.ensemble)) != len(segment.ensemble):
            return f"a bookie is twice in {segment}"
    return None
