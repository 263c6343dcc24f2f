"""Settings that change while the broker runs: kept in the metadata store, in effect on every broker of the cluster at once.

Pulsar's path and form: `/admin/configuration` holds one JSON object of texts by key. What stands there wins over the
configuration a broker was started with; a key that is taken out goes back to it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from magnetar.base.errors import BadVersionError, ConfigError
from magnetar.base.settings import Setting, parse, table_of
from magnetar.broker.config import BrokerConfig
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.metadata import paths
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore

logger = logging.getLogger(__name__)

DYNAMIC: Mapping[str, Setting] = {row.key: row for row in table_of(BrokerSettings).values() if row.dynamic}
"""By key: what policies fall back on, so that one way makes all of them take hold."""


def parsed(key: str, text: str) -> Any:
    """The value of a setting. Raises PreconditionFailedError for a key that cannot change, or a text it does not take."""
    if key not in DYNAMIC:
        raise PreconditionFailedError("Can't update non-dynamic configuration")
    try:
        return parse(DYNAMIC[key], text, "dynamic configuration")
    except ConfigError as error:
        raise PreconditionFailedError(f"Invalid dynamic-config value: {error}") from error


class DynamicConfiguration:
    """Replaces the settings of the one live `BrokerConfig`; nothing else writes to it."""

    def __init__(
        self, metadata: MetadataStore, config: BrokerConfig, applied: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`applied` makes changed settings take hold of what is loaded already."""
        self._metadata = metadata
        self._config = config
        self._started_with = config.settings
        self._texts: dict[str, str] = {}
        self.applied = applied

    @property
    def values(self) -> dict[str, str]:
        """Values that are set, by key."""
        return dict(self._texts)

    async def load(self) -> None:
        """Read what is stored and put it into effect."""
        texts = await self._stored()
        if texts == self._texts:
            return
        self._texts = texts
        changed: dict[str, Any] = {}
        for key, text in texts.items():
            try:
                changed[DYNAMIC[key].name] = parsed(key, text)
            except PreconditionFailedError as error:  # written by another version, or by hand
                logger.warning("dynamic configuration ignored key=%s error=%s", key, error)
        self._config.settings = replace(self._started_with, **changed)
        if self.applied is not None:
            await self.applied()

    async def put(self, key: str, text: str) -> None:
        """Raises PreconditionFailedError."""
        parsed(key, text)
        await self._change(lambda texts: texts.update({key: text.strip()}))

    async def remove(self, key: str) -> None:
        """Back to what the broker was started with. Raises PreconditionFailedError."""
        if key not in DYNAMIC:
            raise PreconditionFailedError("Can't delete non-dynamic configuration")
        await self._change(lambda texts: texts.pop(key, None))

    async def _change(self, change: Callable[[dict[str, str]], object]) -> None:
        """Set a value. It is in effect here when this returns; other brokers learn of it through the store's watch."""
        while True:
            node = await self._metadata.get(paths.DYNAMIC_CONFIGURATION_PATH)
            texts = _decode(node.value) if node else {}
            change(texts)
            version = node.version if node else MUST_NOT_EXIST
            try:
                await self._metadata.put(paths.DYNAMIC_CONFIGURATION_PATH, json.dumps(texts).encode(), version)
            except BadVersionError:
                continue
            break
        await self.load()

    async def _stored(self) -> dict[str, str]:
        node = await self._metadata.get(paths.DYNAMIC_CONFIGURATION_PATH)
        return _decode(node.value) if node else {}


def _decode(value: bytes) -> dict[str, str]:
    document = json.loads(value or b"{}")
    return {str(key): str(text) for key, text in document.items()} if isinstance(document, dict) else {}
