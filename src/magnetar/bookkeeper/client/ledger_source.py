"""What reading and writing a ledger take: its metadata, keys and bookies. Shared by all operations of a handle."""

from __future__ import annotations

from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.config import DEFAULT_CONFIG, ClientConfig
from magnetar.bookkeeper.client.statistics import ClientStatistics
from magnetar.bookkeeper.entry_format import Digest, master_key, pack_lac
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.quorum import write_sets


class LedgerSource:
    """`metadata` is replaced as a whole when it changes."""

    __slots__ = (
        "bookies",
        "config",
        "digest",
        "entry_bytes",
        "ledger_id",
        "master_key",
        "metadata",
        "preferred",
        "statistics",
        "write_sets",
    )

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        password: bytes,
        bookies: BookieDirectory,
        config: ClientConfig = DEFAULT_CONFIG,
        statistics: ClientStatistics | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.bookies = bookies
        self.config = config
        self.statistics = statistics or ClientStatistics()
        self.digest = Digest(metadata.digest_type, password)
        self.master_key = master_key(password)
        self.write_sets = write_sets(metadata.ensemble_size, metadata.write_quorum)
        self.preferred = 0
        """Index that unstriped reads try first; it moves on when that bookie fails."""
        self.entry_bytes = 0
        """Payload size of the entry read last: what the next ones may be like."""

    def packed_lac(self, lac: int) -> bytes:
        """The body of an explicit LAC."""
        return pack_lac(self.ledger_id, lac, self.digest)

    @property
    def striped(self) -> bool:
        return self.metadata.ensemble_size > self.metadata.write_quorum

    def replicas(self, entry_id: int) -> tuple[int, ...]:
        """Ensemble indexes that hold the entry, in the order to try them when all bookies are well."""
        return self.write_sets[(entry_id if self.striped else self.preferred) % len(self.write_sets)]

    def move_on(self, ensemble: tuple[str, ...], bookie_id: str) -> None:
        """The bookie failed a read: an unstriped ledger tries the next one first from now on."""
        if not self.striped and ensemble[self.preferred % len(ensemble)] == bookie_id:
            self.preferred = (self.preferred + 1) % len(ensemble)
