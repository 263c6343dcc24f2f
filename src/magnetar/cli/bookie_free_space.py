"""How much room bookies have, as they say themselves over BookKeeper's protocol."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from magnetar.base.clock import SystemClock
from magnetar.base.network import AsyncioNetwork
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.client.channel.channel import RemoteBookie
from magnetar.bookkeeper.client.channel.options import ChannelOptions
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.service_info import BookieServiceInfo

TIMEOUT_S = 2.0


async def free_spaces(bookies: Mapping[str, BookieServiceInfo], options: ChannelOptions) -> dict[str, int]:
    """Bookie id -> free bytes, of those that answered soon. `options`: what they ask their clients for."""
    network, clock, rng = AsyncioNetwork(), SystemClock(), random.Random(os.urandom(16))
    options = replace(options, connect_timeout_s=TIMEOUT_S, read_timeout_s=TIMEOUT_S)
    addresses = {name: (info.rpc.host, info.rpc.port) for name, info in bookies.items() if info.rpc is not None}
    async with TaskScope("free space") as scope:
        channels = [RemoteBookie(address, network, clock, rng, scope, options) for address in addresses.values()]
        try:
            answers = await asyncio.gather(*map(_free_bytes, channels))
        finally:
            for channel in channels:
                channel.close()
    return {name: free for name, free in zip(addresses, answers, strict=True) if free is not None}


async def _free_bytes(channel: RemoteBookie) -> int | None:
    answered: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
    channel.bookie_info(partial(_note, answered))
    return await answered


def _note(answered: asyncio.Future[int | None], code: int, total_bytes: int, free_bytes: int) -> None:
    if not answered.done():
        answered.set_result(free_bytes if code == ReturnCode.OK else None)
