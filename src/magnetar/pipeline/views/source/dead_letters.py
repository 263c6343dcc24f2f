"""Messages that a source leaves out, sent to a dead-letter topic with the reason and where they were.

Sent before the epoch that leaves them out is committed, so each is there at least once: an epoch that is repeated after a crash sends
them again, with the same `topic` and `position`. The message keeps its bytes and its key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pulsar

from magnetar.pipeline.connect.broker import shared_client
from magnetar.pipeline.connect.errors import WriteError
from magnetar.pipeline.connect.options import read_options
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.views.source.frame import DEAD_KEY, DEAD_POSITION, DEAD_REASON, DEAD_TOPIC, DEAD_VALUE
from magnetar.pipeline.views.source.options import dead_letter_topic, reader_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REASON: Final = "reason"
"""The property with what is wrong; beside it `pipeline`, `source`, `topic` and `position` (ledger:entry:batch index)."""


def send_dead_letters(pipeline: str, source: CreateSource, subscription: str, letters: DataFrame) -> int:
    """How many there were. `letters`: what `undecodable` gives. Returns once the broker has all of them. Raises WriteError."""
    connection = read_options(reader_options(source)).connection
    client, producers = shared_client(connection), dict[str, pulsar.Producer]()
    failed: list[pulsar.Result] = []

    def sent(result: pulsar.Result, _message_id: object) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    count = 0
    try:
        for row in letters.toLocalIterator():
            name = dead_letter_topic(source, row[DEAD_TOPIC], subscription)
            if name not in producers:
                producers[name] = client.create_producer(name, block_if_queue_full=True, batching_enabled=True)
            properties = {
                REASON: row[DEAD_REASON],
                "pipeline": pipeline,
                "source": source.name,
                "topic": row[DEAD_TOPIC],
                "position": row[DEAD_POSITION],
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
        raise WriteError(f"source {source.name}: a dead letter was not taken: {failed[0]}")
    return count


DeadLetterSend = Callable[[], int]
"""Sends those of one source and one epoch."""
