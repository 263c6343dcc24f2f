"""How a process gets at the cluster's metadata, and what becomes of it when its session ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from magnetar.base.clock import Clock
from magnetar.base.errors import StartupError
from magnetar.base.executor import ThreadExecutor
from magnetar.broker.auth.key_material import read_key
from magnetar.metadata import paths
from magnetar.metadata.digest_md5 import Credentials, credentials
from magnetar.metadata.errors import MetadataReplacedError
from magnetar.metadata.open import open_store
from magnetar.metadata.settings import MetadataAccessSettings
from magnetar.metadata.store import MetadataStore, ReplaceableStore, SessionEvent


class SessionLostError(StartupError):
    """The metadata store has given this process up; it must not act on what its session held. Start it again."""

    slug = "session-lost"


def metadata_credentials(config: MetadataAccessSettings) -> Credentials | None:
    """None when there is no secret. Raises ConfigError, which never shows it."""
    text = config.metadata_secret
    if not text:
        return None
    secret = read_key(text, "metadataSecret") if text.startswith(("file:", "data:")) else text.encode()
    return credentials(config.metadata_user, secret)


async def open_metadata(
    url: str, session_timeout_s: float, clock: Clock, stack: AsyncExitStack, known: Credentials | None = None
) -> MetadataStore:
    """Open the store for as long as `stack` lasts. Raises ConfigError, StartupError, MetadataConnectionError,
    MetadataAuthenticationError."""
    executor = ThreadExecutor("metadata")
    stack.callback(executor.close)
    metadata = await open_store(
        url, clock=clock, executor=executor, session_timeout_s=session_timeout_s, credentials=known
    )
    stack.push_async_callback(metadata.close)
    return metadata


def hold_to_cluster(metadata: MetadataStore, instance: str, fail: Callable[[MetadataReplacedError], None]) -> None:
    """Stop, by `fail`, when a later connection leads to a store of another cluster, or to an empty one.

    A bookie would register there, and a broker create ledgers with ids that bookies hold already.
    """
    if isinstance(metadata, ReplaceableStore):
        metadata.require(paths.INSTANCE_ID_PATH, instance.encode(), fail)


class SessionState:
    """Whether a metadata store answers, as far as its session has told."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._connected = True
        metadata.on_session(self._heard)

    def is_connected(self) -> bool:
        return self._connected

    def _heard(self, event: SessionEvent) -> None:
        self._connected = event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED)
