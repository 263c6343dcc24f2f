"""How a process gets at the cluster's metadata, and what becomes of it when its session ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from magnetar.base.clock import Clock
from magnetar.base.errors import StartupError
from magnetar.base.executor import ThreadExecutor
from magnetar.metadata.open import open_store
from magnetar.metadata.store import MetadataStore, SessionEvent


class SessionLostError(StartupError):
    """The metadata store has given this process up; it must not act on what its session held. Start it again."""

    slug = "session-lost"


async def open_metadata(url: str, session_timeout_s: float, clock: Clock, stack: AsyncExitStack) -> MetadataStore:
    """Open the store for as long as `stack` lasts. Raises ConfigError, StartupError, MetadataConnectionError."""
    executor = ThreadExecutor("metadata")
    stack.callback(executor.close)
    metadata = await open_store(url, clock=clock, executor=executor, session_timeout_s=session_timeout_s)
    stack.push_async_callback(metadata.close)
    return metadata


def end_with_session(
    metadata: MetadataStore, what: str, fail: Callable[[SessionLostError], None]
) -> Callable[[], None]:
    """Call `fail` once the session is lost: somebody else may take over from then on. Answers the function that ends this."""

    def told(event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            fail(
                SessionLostError(
                    f"{what} lost its session with the metadata store and stops: others may have taken over what it held. "
                    "Start it again, and raise metadataStoreSessionTimeoutMillis if this happens without an outage"
                )
            )

    return metadata.on_session(told)
