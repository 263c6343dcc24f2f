"""The configuration of `magnetar standalone`: one frozen dataclass with Pulsar's key names, and its defaults where they fit.

Every row is one field; the mechanism is `magnetar.base.settings`. Defaults that differ from Pulsar's standalone.conf say so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from magnetar.base.autorecovery_settings import CopiesCheckSettings
from magnetar.base.bookie_settings import BookieSettings
from magnetar.base.broker_settings import BrokerSettings
from magnetar.base.settings import load_settings, setting

DEFAULT_DATA_DIR = Path("magnetar-data")


@dataclass(frozen=True, kw_only=True)
class StandaloneConfig(BookieSettings, BrokerSettings, CopiesCheckSettings):
    """Everything the one-process server can be told. Build it with `load_config`; in tests `StandaloneConfig(port=0, ...)`."""

    data_dir: Path = setting(DEFAULT_DATA_DIR, "dataDir", "Directory that holds journal, ledgers and metadata.")

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        self.check_broker()
        self.check_bookie()

    def warnings(self) -> list[str]:
        """What the operator must hear about at every start, one line each."""
        return self.bookie_warnings() + self.broker_warnings()


def load_config(
    file: Path | None = None, env: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> StandaloneConfig:
    """The composed configuration; `env` defaults to the process's. Raises ConfigError with one line that names the fix."""
    return load_settings(StandaloneConfig, file, os.environ if env is None else env, flags or {})
