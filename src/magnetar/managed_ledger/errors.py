"""Errors of managed ledgers and cursors."""

from __future__ import annotations

from magnetar.base.errors import ManagedLedgerError


class ManagedLedgerNotFoundError(ManagedLedgerError):
    """No managed ledger has this name."""

    slug = "managed-ledger-not-found"


class ManagedLedgerFencedError(ManagedLedgerError):
    """Another broker has taken this managed ledger over: close the topic here, look it up again."""

    slug = "managed-ledger-fenced"


class ManagedLedgerTerminatedError(ManagedLedgerError):
    """The managed ledger takes no more entries, for good."""

    slug = "managed-ledger-terminated"


class ManagedLedgerClosedError(ManagedLedgerError):
    """The managed ledger is closed here; open it again."""

    slug = "managed-ledger-closed"
    retriable = True


class WriteFailedError(ManagedLedgerError):
    """An entry could not be stored, and the ones queued behind it are refused to keep producers' order."""

    slug = "write-failed"
    retriable = True


class EntryNotFoundError(ManagedLedgerError):
    """No entry is stored at this position (never written, or already removed by retention)."""

    slug = "entry-not-found"


class LostLedgerError(ManagedLedgerError):
    """The list names a ledger which no longer exists. Set auto_skip_non_recoverable_data to go on without it."""

    slug = "lost-ledger"


class CursorNotFoundError(ManagedLedgerError):
    """The managed ledger has no cursor of this name."""

    slug = "cursor-not-found"


class CursorClosedError(ManagedLedgerError):
    """The cursor is closed or deleted."""

    slug = "cursor-closed"


class CursorStateError(ManagedLedgerError):
    """A cursor's stored state contradicts itself, or cannot be read at the moment."""

    slug = "cursor-state"
