"""Errors of the namespace layer, finer than the protocol's codes: the admin REST has a status code for each."""

from __future__ import annotations

from magnetar.base.errors import BrokerError
from magnetar.broker.errors import NotAllowedError, ServiceNotReadyError, TopicNotFoundError
from magnetar.broker.namespaces.records import BrokerAddress


class NamespaceNotFoundError(TopicNotFoundError):
    """The tenant or namespace does not exist (HTTP 404; on the wire TopicNotFound, which ends a client's call at once)."""

    slug = "namespace-not-found"


class AlreadyExistsError(BrokerError):
    """The object to create exists already (HTTP 409)."""

    slug = "already-exists"


class PreconditionFailedError(BrokerError):
    """The request contradicts the present state or a limit (HTTP 412)."""

    slug = "precondition-failed"


class FewerPartitionsError(PreconditionFailedError):
    """A partitioned topic cannot have fewer partitions than it has: keys would move."""

    slug = "fewer-partitions"


class NotMoreCoordinatorsError(PreconditionFailedError):
    """The number of transaction coordinators never shrinks (HTTP 406)."""

    slug = "not-more-coordinators"


class MessageTooLargeError(NotAllowedError):
    """The message is larger than its topic's policy allows."""

    slug = "message-too-large"


class NotOwnedError(ServiceNotReadyError):
    """Another broker serves this, or nobody does: HTTP redirects to it, a client of the binary protocol looks it up again."""

    slug = "not-owned"

    def __init__(self, what: object, owner: BrokerAddress | None) -> None:
        super().__init__(f"{what} is not served by this broker: please redo the lookup")
        self.owner = owner
