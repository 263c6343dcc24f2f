"""The program of one consumer process: receive, write down, acknowledge, until stdin closes.

python -m magnetar.cli.demo.consumer URL TOPIC NAME FILE

Stdin closes when the parent says so or dies, so no consumer outlives the demo.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import zlib
from typing import Any

import msgspec
import pulsar

from magnetar.cli.demo.records import RECORD
from magnetar.cli.messages.pulsar_client import connected

SUBSCRIPTION = "demo"
RECEIVER_QUEUE = 500
"""Messages a consumer holds for each partition: what a killed one leaves for the others to repeat."""

BATCH_MESSAGES = 500
BATCH_TIMEOUT_MS = 50


class Fields(msgspec.Struct):
    """What a consumer looks at."""

    index: int
    carrier: str
    air_time: int | None
    distance: int


DECODER = msgspec.json.Decoder(Fields)


def main() -> None:
    url, topic, name, path = sys.argv[1:]
    stop = threading.Event()
    threading.Thread(target=wait_for_end, args=(stop,), daemon=True).start()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with connected(url) as client:
        consumer = client.subscribe(
            topic,
            SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.KeyShared,
            consumer_name=name,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=RECEIVER_QUEUE,
            batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(BATCH_MESSAGES, -1, BATCH_TIMEOUT_MS),
        )
        print("ready", flush=True)
        while not stop.is_set():
            messages = consumer.batch_receive()
            if messages:
                os.write(file, b"".join(map(record, messages)))
                for message in messages:
                    consumer.acknowledge(message)
        consumer.close()


def wait_for_end(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def record(message: Any) -> bytes:
    payload = message.data()
    fields = DECODER.decode(payload)
    return RECORD.pack(
        time.monotonic_ns(),
        fields.index,
        zlib.crc32(payload),
        fields.distance,
        fields.air_time or 0,
        fields.carrier.encode(),
        message.redelivery_count() > 0,
    )


if __name__ == "__main__":
    main()
