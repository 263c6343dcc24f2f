"""The history of clients' requests and answers: the oracle of every checker. It belongs to no process and forgets nothing."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class LedgerHistory:
    """One ledger. Entry ids are given once: whatever an entry holds in the end must be what its writer sent."""

    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    writer: str
    password: bytes = b""
    sent: dict[int, bytes] = field(default_factory=dict)
    acked: dict[int, float] = field(default_factory=dict)
    """Entry id -> virtual time of its acknowledgement."""
    carried: dict[int, int] = field(default_factory=dict)
    """Entry id -> the LAC that the entry carried to its bookies."""
    failed: dict[int, str] = field(default_factory=dict)
    highest_lac: int = -1
    """The highest LAC that any handle has shown."""
    deleted: bool = False
    """Somebody has asked for its deletion: it may be there or not."""
    writer_done: bool = False

    @property
    def last_acked(self) -> int:
        return max(self.acked, default=-1)

    @property
    def known_lac(self) -> int:
        """What every reader must be able to find out: the LAC that the last confirmed entry carried."""
        return self.carried.get(self.last_acked, -1)


@dataclass(slots=True)
class Violation:
    """A promise that was broken."""

    checker: str
    text: str
    time_s: float


class History:
    """All ledgers of a run, and the violations found so far."""

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerHistory] = {}
        self.violations: list[Violation] = []
        self.counts: dict[str, int] = {}
        self.sent_total = 0

    def count(self, what: str, amount: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + amount

    @property
    def acked_total(self) -> int:
        return sum(len(ledger.acked) for ledger in self.ledgers.values())

    def violate(self, checker: str, text: str, time_s: float) -> None:
        """Note a broken promise; each checker's first few are enough."""
        if sum(one.checker == checker for one in self.violations) < 5:
            self.violations.append(Violation(checker, text, time_s))
