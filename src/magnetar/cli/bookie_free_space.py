"""How much room bookies have, as they say themselves over HTTP: known of those that serve `httpserver`."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Mapping

from magnetar.bookkeeper.service_info import BookieServiceInfo, Endpoint

TIMEOUT_S = 2.0
HTTP_ENDPOINT = "httpserver"


async def free_spaces(bookies: Mapping[str, BookieServiceInfo]) -> dict[str, int]:
    """Bookie id -> free bytes, of those that answered."""
    asked = {
        name: endpoint for name, info in bookies.items() for endpoint in info.endpoints if endpoint.id == HTTP_ENDPOINT
    }
    answers = await asyncio.gather(*(asyncio.to_thread(_free_bytes, endpoint) for endpoint in asked.values()))
    return {name: free for name, free in zip(asked, answers, strict=True) if free is not None}


def _free_bytes(endpoint: Endpoint) -> int | None:
    url = f"http://{endpoint.host}:{endpoint.port}/api/v1/bookie/info"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            return int(json.load(response)["freeSpace"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
