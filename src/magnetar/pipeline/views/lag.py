"""How far a pipeline is behind its topics, in entries as Pulsar's backlog counts them: a batch of messages is one."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from magnetar.pipeline.connect.broker import Topics
from magnetar.pipeline.connect.offsets import EARLIEST, Position, from_document
from magnetar.pipeline.connect.options import read_options
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.views.source_options import reader_options


def entries_behind(ledgers: Sequence[tuple[int, int]], at: Position) -> int:
    """Of (ledger, entries), those at or behind a position."""
    behind = 0
    for ledger, entries in ledgers:
        if ledger > at.ledger:
            behind += entries
        elif ledger == at.ledger:
            behind += max(entries - max(at.entry, 0), 0)
    return behind


class Lag:
    """Asks the brokers, from any thread. Exact with `admin.url`; without it None while the end lies in a later ledger."""

    def __init__(self, sources: Mapping[str, CreateSource]) -> None:
        self._lock = threading.Lock()
        self._topics = {name: Topics(read_options(reader_options(source))) for name, source in sources.items()}

    def measure(self, positions: Mapping[str, Any]) -> int | None:
        """`positions` as a manifest's `sources`. None when it cannot be told. Raises what the client and the admin API raise."""
        with self._lock:
            each = [
                _behind(topics, topic, at if isinstance(at, Position) else EARLIEST)
                for name, topics in self._topics.items()
                for topic, at in from_document(positions.get(name, {})).items()
            ]
        known = [behind for behind in each if behind is not None]
        return sum(known) if len(known) == len(each) else None

    def close(self) -> None:
        with self._lock:
            for topics in self._topics.values():
                topics.close()


def _behind(topics: Topics, topic: str, at: Position) -> int | None:
    if topics.admin is not None:
        return entries_behind(topics.admin.ledgers(topic), at)
    end = topics.end(topic)
    if end <= at:
        return 0
    return end.entry - max(at.entry, 0) if end.ledger == at.ledger else None
