"""What only the metadata store can answer; the shared leaves (bad version, missing node) are in `magnetar.base.errors`."""

from __future__ import annotations

from magnetar.base.errors import BadVersionError, MetadataError, StorageError


class NodeExistsError(BadVersionError):
    """The node was to be created and exists."""

    slug = "node-exists"


class NodeHasChildrenError(MetadataError):
    """A node with children cannot be deleted: delete the children first."""

    slug = "node-has-children"
    retriable = False


class EphemeralParentError(MetadataError):
    """An ephemeral node cannot have children, since it may vanish at any time."""

    slug = "ephemeral-parent"
    retriable = False


class MetadataClosedError(MetadataError):
    """The store was closed, or stopped after a failed write; open it again."""

    slug = "metadata-closed"
    retriable = False


class MetadataConnectionError(MetadataError):
    """The metadata server could not be reached, or the connection broke: what was asked for may have been done, or not."""

    slug = "metadata-connection"
    retriable = True


class SessionExpiredError(MetadataError):
    """The session ended before the call did; ephemeral nodes are gone."""

    slug = "session-expired"
    retriable = True


class StaleStoreError(StorageError):
    """A client has seen a later transaction than the store knows: the store has lost commits and stops."""

    slug = "stale-store"
    retriable = False


class MetadataReplacedError(MetadataError):
    """The store behind the metadata URL is of another cluster than before, or empty: nothing may be done on it."""

    slug = "metadata-replaced"
    retriable = False
