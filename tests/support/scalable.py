"""Messages into a scalable topic, through the asyncio client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

from magnetar.admin.client import AdminClient
from magnetar.client.scalable import Client

KEYS = [f"key-{number}" for number in range(12)]


def publish(service_url: str, topic: str, numbers: Iterable[int], keys: Iterable[str] = KEYS) -> None:
    """Each number under each key, a key's in this order."""
    keys = list(keys)

    async def run() -> None:
        async with Client(service_url) as client:
            producer = await client.producer(topic)
            await asyncio.gather(*(producer.send(b"%d" % number, key=key) for number in numbers for key in keys))
            await producer.close()

    asyncio.run(run())


def send_rows(service_url: str, topic: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """As JSON, by the key `k`."""
    rows = list(rows)

    async def run() -> None:
        async with Client(service_url) as client:
            producer = await client.producer(topic)
            await asyncio.gather(*(producer.send(json.dumps(row).encode(), key=row["k"]) for row in rows))
            await producer.close()

    asyncio.run(run())


def active(admin: AdminClient, topic: str) -> list[int]:
    """Segments that take messages, by their ranges."""
    segments = admin.scalable_topics.metadata(topic).segments.values()
    found = [each for each in segments if each.state == "ACTIVE"]
    return [each.segment_id for each in sorted(found, key=lambda each: each.hash_range.start)]
