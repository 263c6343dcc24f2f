"""Types that all parts of transactions share: ids, the markers that end a transaction in a topic, and the port of those that take part.

Markers are entries that no consumer sees, with Pulsar's types and fields. Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from magnetar.base.errors import BrokerError
from magnetar.broker.errors import NotAllowedError
from magnetar.wire.pulsar.headers import with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.pulsar.PulsarMarkers_pb2 import MarkerType


class TxnId(NamedTuple):
    """A transaction's id. `most`: the coordinator's number. `least`: counts from 1, so that 0 on the wire means "no transaction"."""

    most: int
    least: int

    def __str__(self) -> str:
        """The form of Pulsar's answers: `(most,least)`."""
        return f"({self.most},{self.least})"


TXN_COMMIT: Final = int(MarkerType.TXN_COMMIT)
TXN_ABORT: Final = int(MarkerType.TXN_ABORT)
MARKERS: Final = (TXN_COMMIT, TXN_ABORT)
PRODUCER_NAME: Final = "pulsar.txn.marker"


def marker(txn: TxnId, commit: bool, now_ms: int) -> bytes:
    """The entry that ends a transaction in a topic."""
    metadata = MessageMetadata(
        producer_name=PRODUCER_NAME,
        sequence_id=0,
        publish_time=now_ms,
        marker_type=TXN_COMMIT if commit else TXN_ABORT,
        txnid_most_bits=txn.most,
        txnid_least_bits=txn.least,
    )
    return with_checksum(metadata, b"")


def txn_of(metadata: MessageMetadata) -> TxnId | None:
    """The transaction that an entry belongs to, None for an ordinary one."""
    least = metadata.txnid_least_bits
    return TxnId(metadata.txnid_most_bits, least) if least else None


class TransactionsDisabledError(NotAllowedError):
    """`transactionCoordinatorEnabled` is off. Clients look for the beginning of this text, in an ERROR."""

    slug = "transactions-disabled"


class TransactionLogError(BrokerError):
    """A record of a log cannot be read: the coordinator or subscription is not served rather than served with a gap."""

    slug = "transaction-log"


class Participants(Protocol):
    """The topics that take part in transactions, as a coordinator needs them.

    Names are as the client sent them. All may raise BrokerError or the storage's error; `end_*` is then tried again.

    `low_water_mark`: the highest number below which the coordinator of `txn` has no transaction left; what belongs to one of those is
    aborted on the way.
    """

    async def prepare_partition(self, topic: str, txn: TxnId, owner: str) -> None:
        """The topic is going to store messages of a transaction, from its owner only. Raises TopicNotFoundError, NotAllowedError."""
        ...

    async def prepare_subscription(self, topic: str, subscription: str, txn: TxnId, owner: str) -> None:
        """The subscription is going to hold acknowledgements of a transaction. Raises what `prepare_partition` raises, and
        SubscriptionNotFoundError."""
        ...

    async def end_on_partition(self, topic: str, txn: TxnId, commit: bool, low_water_mark: int) -> None:
        """Show or hide the topic's messages of the transaction; durable on return. A topic that is gone has none."""
        ...

    async def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnId, commit: bool, low_water_mark: int
    ) -> None:
        """Apply or drop the subscription's acknowledgements of the transaction; durable on return."""
        ...
