"""The settings of a ledger client whose bookies are other processes: Pulsar's broker key names, BookKeeper's where Pulsar has none."""

from __future__ import annotations

from magnetar.base.settings import setting
from magnetar.bookkeeper.wire_settings import BookieRequestSettings, BrokerBookieTlsSettings


class LedgerClientSettings(BookieRequestSettings, BrokerBookieTlsSettings):
    """A part of the configuration of `magnetar broker`."""

    managed_ledger_password: str = setting(
        "",
        "managedLedgerPassword",
        "Of new ledgers. Empty: each has one of its own, so that bookies tell it from any other with its id. Pulsar's brokers "
        "can open ledgers only when both have the same one; the metadata store holds it in plain text.",
    )
    # ---- Placement of ledgers
    rackaware_policy_enabled: bool = setting(
        True,
        "bookkeeperClientRackawarePolicyEnabled",
        "Spread the copies of an entry over racks, as /bookies names them.",
    )
    regionaware_policy_enabled: bool = setting(
        False, "bookkeeperClientRegionawarePolicyEnabled", "Spread over regions first: racks are /REGION/RACK then."
    )
    min_racks_per_write_quorum: int = setting(
        2, "bookkeeperClientMinNumRacksPerWriteQuorum", "Racks that the copies of an entry are spread over.", minimum=1
    )
    enforce_min_racks: bool = setting(
        False,
        "bookkeeperClientEnforceMinNumRacksPerWriteQuorum",
        "Refuse to create a ledger that cannot have so many racks; otherwise it gets as many as there are.",
    )
    disk_weight_placement: bool = setting(
        False, "bookkeeperDiskWeightBasedPlacementEnabled", "Bookies with more free space get more ledgers."
    )
    bookkeeper_opportunistic_striping: bool = setting(
        True,
        "bookkeeper_opportunisticStriping",
        "While fewer bookies work than a new ledger's ensemble needs, take fewer, down to its write quorum.",
        differs="A topic can be written to while fewer bookies are up than its ensemble asks for, if they can hold its copies.",
    )
    # ---- Failing bookies
    health_check_enabled: bool = setting(
        True, "bookkeeperClientHealthCheckEnabled", "Leave bookies that fail often out of new ledgers for a while."
    )
    health_check_interval_s: int = setting(
        60, "bookkeeperClientHealthCheckIntervalSeconds", "Within which failures are counted.", unit="s", minimum=1
    )
    health_check_error_threshold: int = setting(
        100,
        "bookkeeperClientHealthCheckErrorThresholdPerInterval",
        "Failed requests above which a bookie is left out, as in BookKeeper. Pulsar: 5.",
        minimum=1,
        differs="BookKeeper's own default.",
    )
    health_check_quarantine_s: int = setting(
        1800,
        "bookkeeperClientHealthCheckQuarantineTimeInSeconds",
        "For how long; less when it registers anew or is needed.",
        unit="s",
        minimum=1,
    )
    delay_ensemble_change: bool = setting(
        False,
        "delayEnsembleChange",
        "Replace a failed bookie only once an entry cannot get its ack quorum without that.",
    )
    max_allowed_ensemble_changes: int = setting(
        -1,
        "maxAllowedEnsembleChanges",
        "Changes of one ledger before it is given up for a new one; -1: any number.",
        minimum=-1,
    )
    add_entry_quorum_timeout_s: int = setting(
        0,
        "addEntryQuorumTimeoutSec",
        "Give a ledger up whose entry waits longer for its ack quorum; 0: never.",
        unit="s",
        minimum=0,
    )
    # ---- Requests
    client_timeout_s: float = setting(
        5.0,
        "bookkeeperClientTimeoutInSeconds",
        "Silence after which a request to a bookie has failed, as in BookKeeper. Pulsar: 30.",
        unit="s",
        minimum=0.1,
        differs="BookKeeper's own default (addEntryTimeoutSec): a lost bookie is replaced sooner.",
    )
    add_entry_timeout_s: float = setting(
        0.0, "addEntryTimeoutSec", "The same for adds only; 0: bookkeeperClientTimeoutInSeconds.", unit="s", minimum=0
    )
    read_entry_timeout_s: float = setting(
        0.0,
        "readEntryTimeoutSec",
        "The same for all other requests; 0: bookkeeperClientTimeoutInSeconds.",
        unit="s",
        minimum=0,
    )
    speculative_read_timeout_ms: int = setting(
        2000,
        "bookkeeperClientSpeculativeReadTimeoutInMillis",
        "Silence after which a read asks the next copy as well, as in BookKeeper. 0: never, as in Pulsar.",
        unit="ms",
        minimum=0,
        differs="BookKeeper's own default: a slow bookie does not make readers wait.",
    )
    speculative_add_timeout_ms: int = setting(
        400,
        "bookkeeperClientSpeculativeAddTimeoutInMillis",
        "Silence after which an entry that another bookie has stored goes to a replacement of the silent bookie, if there is one. "
        "0: never, as in BookKeeper, which waits for the whole time-out.",
        unit="ms",
        minimum=0,
    )
    reorder_read_sequence: bool = setting(
        True,
        "bookkeeperClientReorderReadSequenceEnabled",
        "Read from bookies that answer well before those that do not.",
    )
    explicit_lac_interval_ms: int = setting(
        0,
        "bookkeeperExplicitLacIntervalInMills",
        "How soon an idle ledger's last entry may be read by others; 0: with the next entry.",
        unit="ms",
        minimum=0,
    )
