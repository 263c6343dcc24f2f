"""Commit and abort markers: entries of a topic that no consumer sees, with Pulsar's types and fields. Pure."""

from __future__ import annotations

from typing import Final

from magnetar.broker.transactions.txn_id import TxnId
from magnetar.wire.pulsar.headers import with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.pulsar.PulsarMarkers_pb2 import MarkerType

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
