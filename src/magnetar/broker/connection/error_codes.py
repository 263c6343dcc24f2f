"""The `ServerError` of each leaf of `broker.errors`, and what a client may read of an unexpected failure.

The code decides how the official clients behave: they retry about half of the codes until the operation times out, so final errors
must use a code on which the call ends at once.
"""

from __future__ import annotations

from magnetar.base.errors import MagnetarError, client_text
from magnetar.bookkeeper.errors import NotEnoughBookiesError
from magnetar.broker import errors
from magnetar.broker.namespaces.errors import AlreadyExistsError, MessageTooLargeError, PreconditionFailedError
from magnetar.managed_ledger.errors import ManagedLedgerFencedError, ManagedLedgerTerminatedError
from magnetar.wire.pulsar.PulsarApi_pb2 import ServerError

CODES: dict[type[MagnetarError], int] = {
    errors.UnknownServerError: ServerError.UnknownError,
    errors.MetadataRefusedError: ServerError.MetadataError,
    errors.PersistenceRefusedError: ServerError.PersistenceError,
    errors.AuthenticationError: ServerError.AuthenticationError,
    errors.AuthorizationError: ServerError.AuthorizationError,
    errors.ConsumerBusyError: ServerError.ConsumerBusy,
    errors.ServiceNotReadyError: ServerError.ServiceNotReady,
    errors.ProducerBlockedQuotaExceededError: ServerError.ProducerBlockedQuotaExceededError,
    errors.ProducerBlockedQuotaExceededException: ServerError.ProducerBlockedQuotaExceededException,
    errors.ChecksumError: ServerError.ChecksumError,
    errors.UnsupportedVersionError: ServerError.UnsupportedVersionError,
    errors.TopicNotFoundError: ServerError.TopicNotFound,
    errors.SubscriptionNotFoundError: ServerError.SubscriptionNotFound,
    errors.ConsumerNotFoundError: ServerError.ConsumerNotFound,
    errors.TooManyRequestsError: ServerError.TooManyRequests,
    errors.TopicTerminatedError: ServerError.TopicTerminatedError,
    errors.ProducerBusyError: ServerError.ProducerBusy,
    errors.InvalidTopicNameError: ServerError.InvalidTopicName,
    errors.IncompatibleSchemaError: ServerError.IncompatibleSchema,
    errors.ConsumerAssignError: ServerError.ConsumerAssignError,
    errors.NotAllowedError: ServerError.NotAllowedError,
    errors.ProducerFencedError: ServerError.ProducerFenced,
    errors.TransactionCoordinatorNotFoundError: ServerError.TransactionCoordinatorNotFound,
    errors.InvalidTxnStatusError: ServerError.InvalidTxnStatus,
    errors.TransactionConflictError: ServerError.TransactionConflict,
    errors.TransactionNotFoundError: ServerError.TransactionNotFound,
}
"""One code per class; a subclass without an entry of its own has its parent's."""

_BORROWED: dict[type[MagnetarError], int] = {
    AlreadyExistsError: ServerError.NotAllowedError,
    PreconditionFailedError: ServerError.NotAllowedError,
    ManagedLedgerTerminatedError: ServerError.TopicTerminatedError,
    ManagedLedgerFencedError: ServerError.ServiceNotReady,
}
"""Errors of other layers that reach a client now and then."""


def code_of(error: BaseException) -> int:
    """The ServerError for an exception: the nearest class in its ancestry, PersistenceError for other magnetar errors."""
    for kind in type(error).__mro__:
        code = CODES.get(kind, _BORROWED.get(kind))
        if code is not None:
            return code
    return ServerError.PersistenceError if isinstance(error, MagnetarError) else ServerError.UnknownError


_RETRIED_BY_CPP: dict[int, int] = {
    ServerError.InvalidTopicName: ServerError.TopicNotFound,
    ServerError.SubscriptionNotFound: ServerError.NotAllowedError,
}
"""Final errors whose code the C++ client retries until its operation times out, and what ends its call at once."""


def answer_code_of(error: BaseException, client_version: str) -> int:
    """The code for an ERROR to a request; for the C++, Python and Node clients (one library) one that they do not retry if it is final.

    Too few bookies are one of those for them: a PersistenceError would be retried without a word until the operation times out. Their
    producers and consumers that were there before try again whatever the code.
    """
    code = code_of(error)
    if not client_version.startswith("Pulsar-CPP"):
        return code
    if isinstance(error, NotEnoughBookiesError):
        return ServerError.NotAllowedError
    return _RETRIED_BY_CPP.get(code, code)


def send_code_of(error: BaseException, client_version: str) -> int:
    """The code of a SEND_ERROR. ChecksumError is the only one after which the C++ client fails the one message and goes on; with any
    other it would send a message that is too large again and again."""
    if isinstance(error, MessageTooLargeError) and client_version.startswith("Pulsar-CPP"):
        return ServerError.ChecksumError
    return code_of(error)


def text_of(error: BaseException) -> str:
    """Magnetar's own texts go to the client; of anything else only the kind (the log has the rest)."""
    return (
        client_text(error)
        if isinstance(error, MagnetarError)
        else f"internal error ({type(error).__name__}); see the server's log"
    )


def answer_text_of(error: BaseException, client_version: str) -> str:
    """The text for an ERROR to a request. The V5 Java client gives its callers one kind of exception with this text and no more: for it
    the name of the code stands first."""
    text = text_of(error)
    if client_version.startswith("Pulsar-Java-v5"):
        return f"{ServerError.Name(answer_code_of(error, client_version))}: {text}"  # type: ignore[arg-type]  # as in handlers.lookup
    return text
