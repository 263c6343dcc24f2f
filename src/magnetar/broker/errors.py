"""What the broker refuses a client: one leaf per `ServerError` of Pulsar's protocol, so that the edge maps one to one.

`retriable` says what Pulsar's clients may expect when they repeat the call (see also how the C++ client really reacts:
it retries some final errors until its operation timeout). Names end in Error where the wire name would clash with the root tree.
"""

from __future__ import annotations

from magnetar.base.errors import BrokerError


class UnknownServerError(BrokerError):
    """Something failed that has no name (wire: UnknownError)."""

    slug = "unknown"
    retriable = True


class MetadataRefusedError(BrokerError):
    """The metadata store failed, or the request contradicts it (wire: MetadataError)."""

    slug = "metadata-refused"
    retriable = True


class PersistenceRefusedError(BrokerError):
    """The storage below the topic failed (wire: PersistenceError)."""

    slug = "persistence-refused"
    retriable = True


class AuthenticationError(BrokerError):
    """The client could not prove who it is."""

    slug = "authentication"


class AuthorizationError(BrokerError):
    """The client may not do this."""

    slug = "authorization"


class ConsumerBusyError(BrokerError):
    """The subscription is taken by another consumer, or has as many as it may have (wire: ConsumerBusy)."""

    slug = "consumer-busy"


class ServiceNotReadyError(BrokerError):
    """The topic moves, or the broker starts or stops: the client should look the topic up again."""

    slug = "service-not-ready"
    retriable = True


class ProducerBlockedQuotaExceededError(BrokerError):
    """The backlog quota is reached and its policy holds producers back."""

    slug = "producer-blocked-quota-exceeded"
    retriable = True


class ProducerBlockedQuotaExceededException(BrokerError):
    """The backlog quota is reached and its policy refuses producers with an exception."""

    slug = "producer-blocked-quota-exceeded-exception"


class ChecksumError(BrokerError):
    """A message's payload does not match its CRC32C."""

    slug = "checksum"


class UnsupportedVersionError(BrokerError):
    """The client's protocol version lacks what the request needs."""

    slug = "unsupported-version"


class TopicNotFoundError(BrokerError):
    """The topic does not exist and may not be created."""

    slug = "topic-not-found"


class SubscriptionNotFoundError(BrokerError):
    """The subscription does not exist and may not be created."""

    slug = "subscription-not-found"


class ConsumerNotFoundError(BrokerError):
    """The connection has no consumer with that id."""

    slug = "consumer-not-found"


class TooManyRequestsError(BrokerError):
    """A limit on requests under way is reached."""

    slug = "too-many-requests"
    retriable = True


class TopicTerminatedError(BrokerError):
    """The topic was terminated: it takes no more messages."""

    slug = "topic-terminated"


class ProducerBusyError(BrokerError):
    """The producer's name is in use, or the topic has as many producers as it may have."""

    slug = "producer-busy"


class InvalidTopicNameError(BrokerError):
    """The topic's name breaks Pulsar's rules."""

    slug = "invalid-topic-name"


class IncompatibleSchemaError(BrokerError):
    """The schema contradicts the topic's schema under its compatibility strategy."""

    slug = "incompatible-schema"


class ConsumerAssignError(BrokerError):
    """A Key_Shared consumer's hash ranges overlap with another one's or are malformed."""

    slug = "consumer-assign"


class TransactionCoordinatorNotFoundError(BrokerError):
    """This broker does not serve that transaction coordinator."""

    slug = "transaction-coordinator-not-found"
    retriable = True


class InvalidTxnStatusError(BrokerError):
    """The transaction is not in a state that allows the request."""

    slug = "invalid-txn-status"


class NotAllowedError(BrokerError):
    """The request contradicts how the topic or subscription is used or configured."""

    slug = "not-allowed"


class TransactionConflictError(BrokerError):
    """Another transaction has already acknowledged the message."""

    slug = "transaction-conflict"


class TransactionNotFoundError(BrokerError):
    """The transaction does not exist, or has ended."""

    slug = "transaction-not-found"


class ProducerFencedError(BrokerError):
    """Another producer took over exclusive access to the topic."""

    slug = "producer-fenced"
