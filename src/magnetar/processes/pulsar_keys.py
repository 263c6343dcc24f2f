"""What becomes of each key of Apache Pulsar's broker.conf and standalone.conf here: the list in `pulsar_keys.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from magnetar.base.foreign_keys import ForeignKey, ForeignKeys, ForeignList


@cache
def _document() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _foreign() -> ForeignList:
    document = _document()
    found = {key: ForeignKey(**fields) for key, fields in document["renamed"].items()}
    for kind in ("without_effect", "refused"):
        for group in document[kind]:
            accepted = tuple(group.get("accepted", ()))
            for key, default in group["keys"].items():
                found[key] = ForeignKey(default, group["because"], kind == "refused", accepted)
    return ForeignList(found, document["prefixes"])


def defaults() -> Mapping[str, str]:
    """Pulsar's defaults of the keys that are settings here, as text. Empty: none, or one that depends on the machine."""
    found: Mapping[str, str] = _document()["acts"]
    return found


def dynamic_keys() -> frozenset[str]:
    """Those of them that Pulsar's brokers take while they run."""
    return frozenset(_document()["dynamic"])


PULSAR_KEYS: Final = ForeignKeys(_foreign)
"""The others."""
