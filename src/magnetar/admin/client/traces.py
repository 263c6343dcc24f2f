"""The way of single messages."""

from __future__ import annotations

from magnetar.admin.client.noun import Noun
from magnetar.admin.trace_documents import MessageTrace


class Traces(Noun):
    """Of messages that asked for it by the property `magnetar.trace`."""

    def get(self, topic: str, trace_id: str | None = None) -> list[MessageTrace]:
        """The newest first; `trace_id`: of a trace, or of a message as `ledger:entry`. Raises NotFoundError where it names none."""
        found: list[MessageTrace] = self._get("/trace", list[MessageTrace], {"topic": topic, "id": trace_id})
        return found
