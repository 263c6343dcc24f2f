"""The error tree as HTTP: each class to its status, once, and what the caller may read of a failure."""

from __future__ import annotations

import logging
from typing import ClassVar

from magnetar.base.errors import BadVersionError, DiskFullError, InvalidArgumentError, MagnetarError, client_text
from magnetar.bookkeeper.errors import NotEnoughBookiesError
from magnetar.broker import errors
from magnetar.broker.compaction.errors import CompactionRunningError
from magnetar.broker.namespaces.errors import (
    AlreadyExistsError,
    FewerPartitionsError,
    NotMoreCoordinatorsError,
    PreconditionFailedError,
)
from magnetar.broker.schemas.types import InvalidSchemaError
from magnetar.managed_ledger.errors import (
    EntryNotFoundError,
    ManagedLedgerClosedError,
    ManagedLedgerFencedError,
    ManagedLedgerNotFoundError,
    ManagedLedgerTerminatedError,
)
from magnetar.metadata.errors import MetadataConnectionError

logger = logging.getLogger(__name__)


class AdminError(MagnetarError):
    """A request that the admin API itself refuses."""

    slug = "admin"
    status: ClassVar[int] = 400


class BadRequestError(AdminError):
    """The request is malformed: a body that is not JSON, a parameter that is not a number."""

    slug = "bad-request"


class ForbiddenError(AdminError):
    """The request is refused whoever asks: by the tenant's own settings, or because a page of another site sent it."""

    slug = "forbidden"
    status = 403


class NotFoundError(AdminError):
    """Nothing is there: no such route, cluster or message."""

    slug = "not-found"
    status = 404


class MethodNotAllowedError(AdminError):
    """The path exists, for other methods."""

    slug = "method-not-allowed"
    status = 405

    def __init__(self, allowed: str) -> None:
        super().__init__(f"HTTP 405 Method Not Allowed; allowed: {allowed}")
        self.allowed = allowed


class ForceNotAllowedError(AdminError):
    """A setting of the broker's rules out to delete what still holds something."""

    slug = "force-not-allowed"
    status = 405


class UpgradeRequiredError(AdminError):
    """The address is that of a WebSocket, and the request is not the beginning of one."""

    slug = "upgrade-required"
    status = 426


class BusyError(AdminError):
    """Somebody else is the exclusive consumer, or has the producer's name."""

    slug = "busy"
    status = 409


class SlowBodyError(AdminError):
    """The body did not arrive in time."""

    slug = "slow-body"
    status = 408


class BodyTooLargeError(AdminError):
    """The body is larger than any request needs."""

    slug = "body-too-large"
    status = 413


class UnhealthyError(AdminError):
    """A part of the server cannot do its work."""

    slug = "unhealthy"
    status = 503


STATUS: dict[type[BaseException], int] = {
    errors.AuthenticationError: 401,
    errors.AuthorizationError: 403,
    errors.TopicNotFoundError: 404,
    errors.SubscriptionNotFoundError: 404,
    EntryNotFoundError: 404,
    ManagedLedgerNotFoundError: 404,
    errors.TransactionNotFoundError: 404,
    errors.TransactionCoordinatorNotFoundError: 404,
    errors.InvalidTxnStatusError: 409,
    errors.NotAllowedError: 405,
    errors.TopicTerminatedError: 405,
    ManagedLedgerTerminatedError: 405,
    AlreadyExistsError: 409,
    CompactionRunningError: 409,
    BadVersionError: 409,
    errors.IncompatibleSchemaError: 409,
    InvalidSchemaError: 422,
    FewerPartitionsError: 422,
    NotMoreCoordinatorsError: 406,
    PreconditionFailedError: 412,
    errors.InvalidTopicNameError: 412,
    errors.ConsumerBusyError: 412,
    errors.ProducerBusyError: 412,
    errors.TooManyRequestsError: 429,
    errors.ServiceNotReadyError: 503,
    MetadataConnectionError: 503,
    DiskFullError: 503,
    NotEnoughBookiesError: 503,
    ManagedLedgerFencedError: 503,
    ManagedLedgerClosedError: 503,
    InvalidArgumentError: 400,
}
"""A subclass without an entry of its own has its parent's; what has none at all is 500."""


def status_of(error: BaseException) -> int:
    """The status of the nearest class in the exception's ancestry."""
    if isinstance(error, AdminError):
        return error.status
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def reason_of(error: BaseException, status: int) -> str:
    """Texts of refusals go to the caller; of a failure inside only its kind, the log has the rest."""
    if status < 500 or isinstance(error, AdminError | errors.ServiceNotReadyError | NotEnoughBookiesError):
        return client_text(error)
    if isinstance(error, MetadataConnectionError):
        return "the metadata store does not answer; try again, and look at the server's log if this goes on"
    if isinstance(error, DiskFullError):
        return error.text_for_clients
    if isinstance(error, MagnetarError):
        return f"{error.slug}; see the server's log"
    return "internal error; see the server's log"
