"""A configuration as Pulsar's tools read it: key names to texts."""

from __future__ import annotations

import dataclasses

from magnetar.base.broker_settings import BrokerSettings
from magnetar.base.settings import HIDDEN
from magnetar.broker.config import BrokerConfig


def runtime_settings(config: BrokerSettings | BrokerConfig) -> dict[str, str]:
    """Every setting by its key in Pulsar's files, or by its own name where it has none. Secrets are hidden."""
    found: dict[str, str] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not dataclasses.is_dataclass(value):
            hidden = value and field.metadata.get("secret", False)
            found[str(field.metadata.get("key", field.name))] = HIDDEN if hidden else as_text(value)
    return found


def as_text(value: object) -> str:
    """Booleans as in Java's property files."""
    return str(value).lower() if isinstance(value, bool) else str(value)
