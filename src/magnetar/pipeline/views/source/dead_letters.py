"""Messages that a source or a view leaves out, sent to a dead-letter topic with the reason and where they were.

Sent before the epoch that leaves them out is committed, so each is there at least once: an epoch that is repeated after a crash sends
them again, with the same `topic` and `position`. The message keeps its bytes and its key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulsar

from magnetar.pipeline.connect.broker import shared_client
from magnetar.pipeline.connect.errors import WriteError
from magnetar.pipeline.connect.options import read_options
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.views.source.frame import (
    DEAD_KEY,
    DEAD_POSITION,
    DEAD_TOPIC,
    DEAD_VALUE,
    decode,
    failed_letters,
    undecodable,
)
from magnetar.pipeline.views.source.options import dead_letter_topic, decode_policy, reader_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class DeadLetters:
    """Sends those of one source and one epoch. `raw`: the epoch's messages, with the connector's columns."""

    pipeline: str
    source: CreateSource
    subscription: str
    raw: DataFrame

    def undecodable(self) -> int:
        """How many there were, if the source sends them. Raises WriteError."""
        if decode_policy(self.source) != "dead_letter":
            return 0
        return self._send(undecodable(self.raw, self.source))

    def failed(self, rows: Callable[[DataFrame], DataFrame]) -> int:
        """How many messages there were for which an expression fails. `rows`: those of the source's rows that are made of them, with
        DEAD_LETTER, DEAD_VIEW and DEAD_EXPRESSION. Raises WriteError."""
        return self._send(failed_letters(rows(decode(self.raw, self.source, letters=True))))

    def _send(self, letters: DataFrame) -> int:
        """Returns once the broker has all of them. What is neither key nor value is a property: `reason`, `topic`, `position`
        (ledger:entry:batch index) and, of an expression, `view` and `expression`; beside them `pipeline` and `source`."""
        connection = read_options(reader_options(self.source)).connection
        client, producers = shared_client(connection), dict[str, pulsar.Producer]()
        failed: list[pulsar.Result] = []

        def sent(result: pulsar.Result, _message_id: object) -> None:
            if result != pulsar.Result.Ok:
                failed.append(result)

        said = [name for name in letters.columns if name not in (DEAD_KEY, DEAD_VALUE)]
        count, before = 0, ("", "")
        try:
            for row in letters.toLocalIterator():
                place = (row[DEAD_TOPIC], row[DEAD_POSITION])
                if place == before:  # in each window of the message
                    continue
                before = place
                name = dead_letter_topic(self.source, row[DEAD_TOPIC], self.subscription)
                if name not in producers:
                    producers[name] = client.create_producer(name, block_if_queue_full=True, batching_enabled=True)
                properties = {
                    "pipeline": self.pipeline,
                    "source": self.source.name,
                    **{each: row[each] for each in said},
                }
                value = None if row[DEAD_VALUE] is None else bytes(row[DEAD_VALUE])
                producers[name].send_async(value, sent, properties, row[DEAD_KEY])
                count += 1
            for producer in producers.values():
                producer.flush()
        finally:
            for producer in producers.values():
                producer.close()
        if failed:
            raise WriteError(f"source {self.source.name}: a dead letter was not taken: {failed[0]}")
        return count
