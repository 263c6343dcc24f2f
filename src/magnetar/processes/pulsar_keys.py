"""What becomes of each key of Apache Pulsar's broker.conf and standalone.conf here: the list in `pulsar_keys.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

from magnetar.base.foreign_keys import ForeignKey, ForeignKeys


def _read() -> Mapping[str, Any]:
    return tomllib.loads(resources.files("magnetar.processes").joinpath("pulsar_keys.toml").read_text(encoding="utf-8"))


def _foreign(document: Mapping[str, Any]) -> dict[str, ForeignKey]:
    found = {key: ForeignKey(**fields) for key, fields in document["renamed"].items()}
    for kind in ("without_effect", "refused"):
        for group in document[kind]:
            accepted = tuple(group.get("accepted", ()))
            for key, default in group["keys"].items():
                found[key] = ForeignKey(default, group["because"], kind == "refused", accepted)
    return found


_DOCUMENT: Final = _read()

DEFAULTS: Final[Mapping[str, str]] = _DOCUMENT["acts"]
"""Pulsar's defaults of the keys that are settings here, as text. Empty: none, or one that depends on the machine."""

DYNAMIC_KEYS: Final[frozenset[str]] = frozenset(_DOCUMENT["dynamic"])
"""Those of them that Pulsar's brokers take while they run."""

PULSAR_KEYS: Final = ForeignKeys(_foreign(_DOCUMENT), _DOCUMENT["prefixes"])
"""The others."""
