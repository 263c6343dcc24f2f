"""Options of `format("magnetar.view")`. A decision core."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.pipeline.connect.errors import OptionError
from magnetar.pipeline.home import pipeline_directory

KNOWN: Final = ("pipeline", "view", "epoch", "groups", "key", "pushdown", "pin", "pinTimeoutS")
STORAGE_PREFIX: Final = "storage."
SPARKS_OWN: Final = ("path", "serialization.format")
PIN_TIMEOUT_S: Final = 3600
"""A task that begins later than this after planning may find its runs collected; it then fails and says so."""

GROUPS_MAX: Final = 10_000
"""Tasks of one scan; more is an OptionError."""


@dataclass(frozen=True)
class ViewOptions:
    """What to scan. `epoch` None: the newest. `groups` None: as many tasks as the pipeline has units.

    `key`: values by key column; only rows with one of them are returned. `storage`: options of the fsspec file system, which may
    be credentials, so `repr` leaves them out.
    """

    directory: str
    view: str
    epoch: int | None = None
    groups: int | None = None
    key: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    pushdown: bool = False
    pin: bool = True
    pin_timeout_s: int = PIN_TIMEOUT_S
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)


def view_options(given: Mapping[str, str]) -> ViewOptions:
    """Raises OptionError, which names the option and the fix."""
    known = {name.lower(): name for name in KNOWN}
    options: dict[str, str] = {}
    storage: dict[str, str] = {}
    for name, value in given.items():
        lower = name.lower()
        if lower in known or lower in SPARKS_OWN:
            options[lower] = str(value).strip()
        elif lower.startswith(STORAGE_PREFIX):
            storage[name[len(STORAGE_PREFIX) :]] = str(value)
        else:
            near = difflib.get_close_matches(lower, known, n=1, cutoff=0.5)
            hint = f"did you mean {known[near[0]]}?" if near else f"known are: {', '.join(KNOWN)}"
            raise OptionError(f"unknown option of magnetar.view: {name}; {hint}")
    pipeline = options.get("pipeline") or options.get("path")
    if not pipeline:
        raise OptionError("pipeline is missing: give the name of a pipeline, or the directory or URL it lives in")
    if not options.get("view"):
        raise OptionError("view is missing: give the name of a materialized view or table of the pipeline")
    return ViewOptions(
        directory=pipeline_directory(pipeline),
        view=options["view"],
        epoch=_integer(options, "epoch", 0),
        groups=_integer(options, "groups", 1, GROUPS_MAX),
        key=_key(options.get("key")),
        pushdown=_boolean(options, "pushdown", False),
        pin=_boolean(options, "pin", True),
        pin_timeout_s=_integer(options, "pinTimeoutS", 1) or PIN_TIMEOUT_S,
        storage=storage,
    )


def _key(text: str | None) -> dict[str, tuple[Any, ...]]:
    if not text:
        return {}
    try:
        document = json.loads(text)
    except ValueError as error:
        raise OptionError(f'key is not JSON ({error}): give one like {{"carrier": ["UA", "AA"]}}') from error
    if not isinstance(document, dict) or not document:
        raise OptionError('key is not a JSON object: give one like {"carrier": "UA"} or {"carrier": ["UA", "AA"]}')
    return {name: tuple(value) if isinstance(value, list) else (value,) for name, value in document.items()}


def _integer(options: Mapping[str, str], name: str, least: int, most: int = 10**18) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    if not re.fullmatch(r"\d{1,18}", value) or not least <= int(value) <= most:
        upper = f" and at most {most}" if most < 10**18 else ""
        raise OptionError(f"{name} is {value!r}: give a whole number of at least {least}{upper}")
    return int(value)


def _boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name.lower())
    if value is None:
        return default
    if value.lower() not in ("true", "false"):
        raise OptionError(f"{name} is {value!r}: give true or false")
    return value.lower() == "true"
