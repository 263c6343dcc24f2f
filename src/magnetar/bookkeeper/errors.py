"""Errors of the ledger layer: below `LedgerError` for clients, below `StorageError` for the bookie's own disks."""

from __future__ import annotations

from magnetar.base.errors import LedgerError, StartupError
from magnetar.bookkeeper.codes import ReturnCode


class NoSuchLedgerError(LedgerError):
    """The ledger does not exist. Raised on positive proof only."""

    slug = "no-such-ledger"


class NoSuchEntryError(LedgerError):
    """The entry does not exist. Raised on positive proof only."""

    slug = "no-such-entry"


class LedgerExistsError(LedgerError):
    """Somebody else created a ledger with this id."""

    slug = "ledger-exists"


class LedgerFencedError(LedgerError):
    """Another client has taken the ledger over; this writer may not add any more."""

    slug = "ledger-fenced"


class LedgerClosedError(LedgerError):
    """The ledger is closed (here, or in its metadata)."""

    slug = "ledger-closed"


class LedgerUnauthorizedError(LedgerError):
    """The ledger has another password."""

    slug = "ledger-unauthorized"


class LedgerRecoveryError(LedgerError):
    """Too few bookies answered to decide where the ledger ends. Nothing was changed that a retry would not continue."""

    slug = "ledger-recovery"
    retriable = True


class LedgerMetadataError(LedgerError):
    """The ledger's metadata cannot be read or contradicts itself."""

    slug = "ledger-metadata"


class DigestMismatchError(LedgerError):
    """An entry's bytes do not match its digest, or the bookie answered with another entry."""

    slug = "digest-mismatch"
    retriable = True


class NotEnoughBookiesError(LedgerError):
    """Fewer writable bookies than the ledger's ensemble needs."""

    slug = "not-enough-bookies"
    retriable = True


class BookieUnavailableError(LedgerError):
    """A bookie could not be reached, or did not answer in time."""

    slug = "bookie-unavailable"
    retriable = True


class BookieReadOnlyError(LedgerError):
    """The bookie's disks are full: it reads but does not write."""

    slug = "bookie-read-only"
    retriable = True


class BookieOverloadedError(LedgerError):
    """The bookie refused the request because too much waits for its disk."""

    slug = "bookie-overloaded"
    retriable = True


class LedgerBusyError(LedgerError):
    """Too many entries of one ledger are under way. The writer is well: wait for some of them and append again."""

    slug = "ledger-busy"
    retriable = True


class AddQuorumTimeoutError(LedgerError):
    """An entry did not get its ack quorum within addEntryQuorumTimeoutSec."""

    slug = "add-quorum-timeout"


class BookieRequestError(LedgerError):
    """A bookie failed a request without saying anything about the entry: its disk, or a request it could not take."""

    slug = "bookie-request"
    retriable = True


class CookieError(StartupError):
    """The bookie's directories are not the ones this bookie was created with. Starting could lose acknowledged entries."""

    slug = "bookie-cookie"


class RegistrationError(StartupError):
    """A bookie's registration in the metadata store cannot be made or read."""

    slug = "bookie-registration"


class ClusterLayoutError(StartupError):
    """The metadata store holds no BookKeeper cluster, or one whose layout is not supported."""

    slug = "cluster-layout"


class EntryLostError(LedgerError):
    """All bookies that have to hold an entry are there and deny it: no copy is left."""

    slug = "entry-lost"


class EntryUnreadableError(LedgerError):
    """No bookie gave an entry, and not all of them deny having it: it may come back with a bookie."""

    slug = "entry-unreadable"
    retriable = True


class LockLostError(LedgerError):
    """The lock on a ledger went with the metadata store's session: another worker may repair the ledger now."""

    slug = "lock-lost"
    retriable = True


class AuditPausedError(LedgerError):
    """An auditor's check of all copies was broken off; it goes on from there when it may."""

    slug = "audit-paused"
    retriable = True


class BookieStillRegisteredError(LedgerError):
    """The bookie serves; what is asked for is done to bookies that are stopped."""

    slug = "bookie-still-registered"


class BookieStillNeededError(LedgerError):
    """Ledgers still name the bookie: their only copies may be there."""

    slug = "bookie-still-needed"
    retriable = True


class RackMappingError(LedgerError):
    """Pulsar's `/bookies` node does not have its form."""

    slug = "rack-mapping"


class UnderreplicationFormatError(LedgerError):
    """What lies below /ledgers/underreplication is not what BookKeeper writes there. Auto-recovery leaves it alone and stops."""

    slug = "underreplication-format"


class LedgerIdsSetBackError(StartupError):
    """The metadata store is about to hand out ids of ledgers that bookies hold already."""

    slug = "ledger-ids-set-back"


class UnsyncedError(StartupError):
    """The bookie did not sync its journal and the machine went down: starting could deny acknowledged entries."""

    slug = "bookie-unsynced"


_BY_CODE: dict[int, type[LedgerError]] = {
    ReturnCode.NO_LEDGER: NoSuchLedgerError,
    ReturnCode.NO_ENTRY: NoSuchEntryError,
    ReturnCode.UNAUTHORIZED: LedgerUnauthorizedError,
    ReturnCode.FENCED: LedgerFencedError,
    ReturnCode.READ_ONLY: BookieReadOnlyError,
    ReturnCode.TOO_MANY_REQUESTS: BookieOverloadedError,
}


def error_for(code: int, ledger_id: int, entry_id: int | None = None) -> LedgerError:
    """The error of a failed answer, with the ledger (and entry) in its text. `code` is a `ReturnCode` other than OK."""
    kind = _BY_CODE.get(code, BookieRequestError)
    where = f"ledger {ledger_id}" if entry_id is None else f"ledger {ledger_id} entry {entry_id}"
    try:
        name = ReturnCode(code).name
    except ValueError:
        name = str(code)
    return kind(f"{where}: bookie answered {name}")
