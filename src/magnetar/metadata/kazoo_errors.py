"""What kazoo raises, as the errors of a metadata store."""

from __future__ import annotations

from kazoo import exceptions as kz

from magnetar.base.errors import BadVersionError, InvalidArgumentError, MetadataError, NodeNotFoundError
from magnetar.metadata.digest_md5 import MetadataAuthenticationError
from magnetar.metadata.errors import EphemeralParentError, NodeHasChildrenError, SessionExpiredError


def translate(path: str, error: kz.KazooException) -> MetadataError | InvalidArgumentError:
    if isinstance(error, kz.NoNodeError):
        return NodeNotFoundError(f"{path} does not exist")
    if isinstance(error, kz.NodeExistsError):
        return BadVersionError(f"{path} exists already")
    if isinstance(error, kz.BadVersionError):
        return BadVersionError(f"{path} is at another version than expected")
    if isinstance(error, kz.NotEmptyError):
        return NodeHasChildrenError(f"{path} has children; delete them first")
    if isinstance(error, kz.NoChildrenForEphemeralsError):
        return EphemeralParentError(f"the parent of {path} is ephemeral and cannot have children")
    if isinstance(error, kz.SessionExpiredError):
        return SessionExpiredError(f"{path}: the metadata session has expired")
    if isinstance(error, kz.BadArgumentsError):
        return InvalidArgumentError(f"ZooKeeper refuses the path {path!r}")
    if isinstance(error, kz.AuthFailedError | kz.SessionClosedRequireSaslError):
        return MetadataAuthenticationError(
            "the metadata server asks who its clients are; set metadataSecret to its secret"
        )
    if isinstance(error, kz.NoAuthError):
        return MetadataError(
            f"{path}: ZooKeeper grants no permission; give the node an open ACL or connect as its owner (metadataSecret)"
        )
    return MetadataError(f"{path}: ZooKeeper failed with {type(error).__name__} {error}")
