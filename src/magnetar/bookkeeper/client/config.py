"""What a ledger client can be told. The names behind the fields are BookKeeper's ClientConfiguration keys."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Times in seconds; 0 switches a timer off."""

    password: bytes = b""
    """Of new ledgers, and of those whose metadata names none. Empty: every new ledger gets one of its own."""
    delay_ensemble_change: bool = False
    """delayEnsembleChange: replace a bookie only when an ack quorum is out of reach, or when it says that it is read-only."""
    opportunistic_striping: bool = False
    """opportunisticStriping: while fewer bookies work than a new ledger's ensemble needs, take fewer, down to its write quorum."""
    ensemble_changes_max: int | None = None
    """maxAllowedEnsembleChanges of one ledger: the next one fails its writer instead. None: any number."""
    add_quorum_timeout_s: float = 0.0
    """addEntryQuorumTimeoutSec: an entry without its ack quorum for that long (up to a quarter more) fails its writer."""
    add_hedge_s: float = 0.0
    """An entry that has waited for so long (up to a quarter more) while another bookie stored it goes to a replacement of the
    silent bookie as well, long before the request times out."""
    explicit_lac_interval_s: float = 0.0
    """explicitLacInterval: how often an idle writer tells its bookies the LAC that no later entry has carried."""
    speculative_read_timeout_s: float = 2.0
    """firstSpeculativeReadTimeout: a read asks the next replica as well after this."""
    speculative_read_timeout_max_s: float = 2.0
    """maxSpeculativeReadTimeout: the wait grows up to this."""
    speculative_read_factor: float = 2.0
    """speculativeReadTimeoutBackoffMultiplier."""
    reorder_reads: bool = True
    """reorderReadSequenceEnabled: ask healthy bookies before those that failed lately, are read-only, slow or away."""
    recovery_reads_under_way: int = 16
    """Entries that a recovery reads ahead of the one it decides about (recoveryReadBatchSize is 1 in BookKeeper)."""


DEFAULT_CONFIG = ClientConfig()
