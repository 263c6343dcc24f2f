"""The one error tree. A layer adds its own leaves in its own package, below one of these branches.

    MagnetarError
    ├── ConfigError              a setting is unknown or has a bad value; the text names the fix
    │   └── OpenDoorError        other machines would be let in although nothing asks who they are
    ├── StartupError             the server cannot start: port taken, directory locked or not writable
    ├── InvalidArgumentError     the caller's value is wrong; repeating the call cannot help
    ├── MetadataError            the metadata store failed
    │   ├── BadVersionError      compare-and-set lost: somebody else wrote first
    │   └── NodeNotFoundError    the path does not exist
    ├── StorageError             disk, journal, entry log or index failed
    │   ├── DiskFullError        no room; retriable once room is made
    │   ├── DiskIOError          read, write or fsync failed; after a failed fsync the bookie stops
    │   └── CorruptionError      bytes on disk are damaged; never an answer of "does not exist"
    ├── LedgerError              a ledger operation failed (see `magnetar.bookkeeper.errors`)
    ├── ManagedLedgerError       a managed ledger or cursor operation failed (see `magnetar.managed_ledger.errors`)
    ├── ClientError              another cluster could not be reached or refused (see `magnetar.client.errors`)
    └── BrokerError              a client's request was refused (see `magnetar.broker.errors`)

Every class carries `slug` (stable, machine-readable) and `retriable` (may the same call succeed later without anybody changing
anything?). Wire codes are mapped at the edges only (`broker/connection/error_codes`, `admin/errors`, `bookkeeper/codes`).
"""

from __future__ import annotations

from typing import ClassVar


class MagnetarError(Exception):
    """The root. Catch it where anything magnetar raises on purpose should be handled alike."""

    slug: ClassVar[str] = "error"
    retriable: ClassVar[bool] = False


class ConfigError(MagnetarError):
    """A setting is unknown or has a bad value."""

    slug = "config"


class OpenDoorError(ConfigError):
    """A server would let other machines in although nothing asks who they are."""

    slug = "open-door"


class StartupError(MagnetarError):
    """The server cannot start here; the text says what to change."""

    slug = "startup"


class InvalidArgumentError(MagnetarError, ValueError):
    """A caller's value is outside what the function takes."""

    slug = "invalid-argument"


class MetadataError(MagnetarError):
    """The metadata store failed or could not be reached."""

    slug = "metadata"
    retriable = True


class BadVersionError(MetadataError):
    """Compare-and-set lost against another writer."""

    slug = "bad-version"
    retriable = False


class NodeNotFoundError(MetadataError):
    """The path does not exist."""

    slug = "node-not-found"
    retriable = False


class StorageError(MagnetarError):
    """Disk, journal, entry log or index failed. The text is for the log: it may name files of the server; see `client_text`."""

    slug = "storage"
    text_for_clients: ClassVar[str] = "the server's storage failed; its log says why"


class DiskFullError(StorageError):
    """No room on the device."""

    slug = "disk-full"
    retriable = True
    text_for_clients = "the server's disk is full and takes only deletions; delete topics or make room on the disk"


class DiskIOError(StorageError):
    """A read, write or fsync failed. A file whose fsync failed is never used again."""

    slug = "disk-io"


class CorruptionError(StorageError):
    """Bytes on disk do not match their checksum or their form."""

    slug = "corruption"


class LedgerError(MagnetarError):
    """A ledger operation failed."""

    slug = "ledger"


class ManagedLedgerError(MagnetarError):
    """A managed ledger or cursor operation failed."""

    slug = "managed-ledger"


class ClientError(MagnetarError):
    """A request to another cluster failed."""

    slug = "client"


class BrokerError(MagnetarError):
    """A client's request was refused."""

    slug = "broker"


def client_text(error: BaseException) -> str:
    """What a client may read of an error: its text, unless the disk's is part of it, which names files of the server."""
    cause: BaseException | None = error
    seen: set[int] = set()
    # An error that is raised again to whoever waits for the same thing collects contexts, which may lead round in a circle.
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, StorageError):
            return cause.text_for_clients
        if isinstance(cause, OSError) and cause.filename is not None:
            return StorageError.text_for_clients
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return str(error)
