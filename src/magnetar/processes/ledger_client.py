"""A ledger client on the bookies that the metadata lists."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack

from magnetar.base.clock import Clock
from magnetar.base.network import AsyncioNetwork
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import DEFAULT_CONFIG, ClientConfig
from magnetar.bookkeeper.client.remote_bookies import RemoteBookies
from magnetar.metadata.store import MetadataStore


async def open_ledger_client(
    metadata: MetadataStore,
    clock: Clock,
    rng: random.Random,
    stack: AsyncExitStack,
    config: ClientConfig = DEFAULT_CONFIG,
) -> tuple[BookKeeperClient, BookieDirectory]:
    """Both for as long as `stack` lasts; the directory follows the lists."""
    directory = BookieDirectory()
    bookies = RemoteBookies(metadata, directory, AsyncioNetwork(), clock, random.Random(rng.random()))
    await stack.enter_async_context(bookies)
    scope = await stack.enter_async_context(TaskScope("ledger client"))
    return BookKeeperClient(metadata, directory, clock, random.Random(rng.random()), scope, config), directory
