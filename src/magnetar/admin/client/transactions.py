"""Transactions: their coordinators, and what they do in topics and subscriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar.admin.client.noun import Noun, as_kind, topic_names
from magnetar.admin.documents.transactions import (
    BufferStats,
    CoordinatorInfo,
    CoordinatorInternalStats,
    CoordinatorStats,
    InBufferStats,
    InPendingAckStats,
    PendingAckInternalStats,
    PendingAckStats,
    PositionInPendingAck,
    TransactionMetadata,
)

_ROOT = "/admin/v3/transactions"
_TOPIC = "{tenant}/{namespace}/{topic}"
_IDS = "{mostSigBits}/{leastSigBits}"
_Metadata = dict[str, TransactionMetadata]
_Stats = dict[str, CoordinatorStats]


class Transactions(Noun):
    """A transaction is named by its most and least bits, as in `(most,least)`."""

    def coordinators(self) -> list[CoordinatorInfo]:
        found: list[CoordinatorInfo] = self._ask("/coordinators", list[CoordinatorInfo])
        return found

    def coordinator_stats(self) -> _Stats:
        """Statistics of all coordinators, by number."""
        found: _Stats = self._ask("/coordinatorStats", _Stats)
        return found

    def stats_of(self, coordinator_id: int) -> CoordinatorStats:
        """Statistics of one coordinator."""
        query = {"coordinatorId": coordinator_id}
        found: CoordinatorStats = self._ask("/coordinatorStats", CoordinatorStats, query)
        return found

    def coordinator_internal_stats(self, coordinator_id: int, *, metadata: bool = False) -> CoordinatorInternalStats:
        found: CoordinatorInternalStats = self._ask(
            "/coordinatorInternalStats/{coordinatorId}",
            CoordinatorInternalStats,
            {"metadata": metadata},
            coordinatorId=coordinator_id,
        )
        return found

    def scale(self, replicas: int) -> None:
        """Raise the number of coordinators."""
        self._call("POST", _ROOT + "/transactionCoordinator/replicas", {}, None, replicas)

    def metadata(self, most: int, least: int) -> TransactionMetadata:
        """One that has not ended yet."""
        found: TransactionMetadata = self._ask(
            "/transactionMetadata/" + _IDS, TransactionMetadata, None, mostSigBits=most, leastSigBits=least
        )
        return found

    def slow(self, at_least_ms: int, coordinator_id: int | None = None) -> _Metadata:
        """Those that have been open for so long."""
        query = {"coordinatorId": coordinator_id}
        found: _Metadata = self._ask("/slowTransactions/{timeout}", _Metadata, query, timeout=at_least_ms)
        return found

    def abort(self, most: int, least: int) -> None:
        names = {"mostSigBits": most, "leastSigBits": least}
        self._call("POST", _ROOT + "/abortTransaction/" + _IDS, names)

    def buffer_stats(self, topic: str, *, low_water_marks: bool = False) -> BufferStats:
        query = {"lowWaterMarks": low_water_marks}
        found: BufferStats = self._ask("/transactionBufferStats/" + _TOPIC, BufferStats, query, **_names(topic))
        return found

    def buffer_internal_stats(self, topic: str, *, metadata: bool = False) -> dict[str, Any]:
        found: dict[str, Any] = self._ask(
            "/transactionBufferInternalStats/" + _TOPIC, dict[str, Any], {"metadata": metadata}, **_names(topic)
        )
        return found

    def in_buffer_stats(self, topic: str, most: int, least: int) -> InBufferStats:
        names = {**_names(topic), "mostSigBits": most, "leastSigBits": least}
        found: InBufferStats = self._ask(f"/transactionInBufferStats/{_TOPIC}/{_IDS}", InBufferStats, None, **names)
        return found

    def pending_ack_stats(self, topic: str, subscription: str, *, low_water_marks: bool = False) -> PendingAckStats:
        found: PendingAckStats = self._ask(
            f"/pendingAckStats/{_TOPIC}/{{subscription}}",
            PendingAckStats,
            {"lowWaterMarks": low_water_marks},
            **_names(topic),
            subscription=subscription,
        )
        return found

    def pending_ack_internal_stats(
        self, topic: str, subscription: str, *, metadata: bool = False
    ) -> PendingAckInternalStats:
        found: PendingAckInternalStats = self._ask(
            f"/pendingAckInternalStats/{_TOPIC}/{{subscription}}",
            PendingAckInternalStats,
            {"metadata": metadata},
            **_names(topic),
            subscription=subscription,
        )
        return found

    def in_pending_ack_stats(self, topic: str, subscription: str, most: int, least: int) -> InPendingAckStats:
        names = {**_names(topic), "subscription": subscription, "mostSigBits": most, "leastSigBits": least}
        template = f"/transactionInPendingAckStats/{_TOPIC}/{{subscription}}/{_IDS}"
        found: InPendingAckStats = self._ask(template, InPendingAckStats, None, **names)
        return found

    def position_in_pending_ack(
        self, topic: str, subscription: str, ledger_id: int, entry_id: int, batch_index: int | None = None
    ) -> PositionInPendingAck:
        names = {**_names(topic), "subscription": subscription, "ledger": ledger_id, "entry": entry_id}
        template = f"/positionStatsInPendingAck/{_TOPIC}/{{subscription}}/{{ledger}}/{{entry}}"
        found: PositionInPendingAck = self._ask(template, PositionInPendingAck, {"batchIndex": batch_index}, **names)
        return found

    def _ask(self, template: str, kind: Any, query: Mapping[str, object] | None = None, **names: object) -> Any:
        return as_kind(self._call("GET", _ROOT + template, names, query).json(), kind)


def _names(topic: str) -> dict[str, Any]:
    return {name: value for name, value in topic_names(topic).items() if name != "domain"}
