"""How settings are read: defaults < file < environment < flags, driven by the fields of one frozen dataclass.

A field made with `setting(...)` carries its external key (Pulsar's name where Pulsar has one), unit, bounds and text, so parsing,
error messages, `magnetar config list` and `magnetar config explain` all come from one table. Reading has no side effects: the
environment is passed in and nothing is logged.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

from magnetar.base.errors import ConfigError

C = TypeVar("C")

PULSAR_ENV_PREFIX = "PULSAR_PREFIX_"
"""Pulsar's images read `PULSAR_PREFIX_<key>`; so do we."""

ENV_PREFIX = "MAGNETAR_"
"""`MAGNETAR_<FIELD_NAME>` or `MAGNETAR_<key>`; wins over Pulsar's prefix."""

ENV_RESERVED = frozenset(
    {
        "MAGNETAR_CONFIG",
        "MAGNETAR_METADATA_URL",
        "MAGNETAR_URL",
        "MAGNETAR_ADMIN_URL",
        "MAGNETAR_TOKEN",
        "MAGNETAR_AUTH_PLUGIN",
        "MAGNETAR_AUTH_PARAMS",
        "MAGNETAR_TLS_TRUST_CERTS",
        "MAGNETAR_HOME",
        "MAGNETAR_CLUSTER_PROCESS",
    }
)
"""Names behind our prefix that are not settings of a server: flags of the command line, and the mark of a cluster's processes."""

HIDDEN = "*****"
"""Stands where a secret is set."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")

_ALIKE = 0.6
"""An unknown key is repeated in the error only if it resembles a known one this much: else it may be a value without its key."""

_WORDS_OF_TRUTH = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def setting(
    default: Any,
    key: str,
    doc: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
    secret: bool = False,
    dynamic: bool = False,
) -> Any:
    """A dataclass field with all that is known about it. `key` is the name in files; bounds are inclusive.

    The value of a `secret` is never shown: not by `repr`, not by `magnetar config`, not over HTTP. A `dynamic` one can change while the
    broker runs (`magnetar brokers update-dynamic-config`).
    """
    about = {"key": key, "doc": doc, "unit": unit, "minimum": minimum, "maximum": maximum, "choices": tuple(choices)}
    return field(default=default, metadata=about | {"secret": secret, "dynamic": dynamic}, repr=not secret)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: a field of the configuration class and what its `setting(...)` said."""

    name: str
    kind: type
    default: object
    key: str
    doc: str
    unit: str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    secret: bool
    dynamic: bool

    def shown(self, value: object) -> object:
        """The value as people may see it."""
        return HIDDEN if self.secret and value else value

    @property
    def env(self) -> str:
        """The environment variable of ours that sets it."""
        return ENV_PREFIX + self.name.upper()


class Resolved(NamedTuple):
    """A value and where it came from: `default`, `FILE:LINE`, `FILE`, a variable's name, or `flag`."""

    value: object
    source: str


def table_of(cls: type) -> dict[str, Setting]:
    """The settings of a configuration class by field name, in the order of its fields."""
    hints = get_type_hints(cls)
    return {
        part.name: Setting(name=part.name, kind=hints[part.name], default=part.default, **part.metadata)
        for part in dataclasses.fields(cls)
    }


def find(table: Mapping[str, Setting], key: str, where: str) -> Setting:
    """The setting called `key` (file key or field name). Raises ConfigError naming the nearest key."""
    if key in table:
        return table[key]
    by_key = {row.key: row for row in table.values()}
    if key in by_key:
        return by_key[key]
    folded = {name.lower(): name for name in [*table, *by_key]}
    meant = name_in(key, table.values())
    if meant:
        raise ConfigError(f"{where}: {meant} is followed by what is not part of its name; write {meant}=VALUE")
    nearest = difflib.get_close_matches(key.lower(), list(folded), n=1, cutoff=0.0)
    alike = difflib.SequenceMatcher(None, key.lower(), nearest[0]).ratio() >= _ALIKE and _NAME.fullmatch(key)
    shown = f" {key!r}" if alike else ""
    raise ConfigError(f"{where}: unknown key{shown}; the nearest is {folded[nearest[0]]!r}")


def name_in(word: str, rows: Iterable[Setting]) -> str:
    """The setting's name (or `ROLE.name`) with which a malformed word begins, empty if it begins with none.

    Nothing else of such a word may be repeated in an error: after a slip (`tokenSecretKey:VALUE`) the rest is a secret.
    """
    found = _NAME.match(word)
    names = {name for row in rows for name in (row.name, row.key)}
    return found[0] if found is not None and found[0].rpartition(".")[2] in names else ""


def parse(row: Setting, text: str, where: str) -> object:
    """The value that `text` stands for. Raises ConfigError naming what is allowed."""
    text = text.strip()
    value: object
    if not text and row.kind not in (bool, int, float) and str(row.default):
        raise ConfigError(f"{where}: {row.key} must not be empty; leave it out for its default, {row.default}")
    try:
        value = _WORDS_OF_TRUTH[text.lower()] if row.kind is bool else row.kind(text)
    except (ValueError, KeyError):
        expected = "true or false" if row.kind is bool else {int: "a whole number", float: "a number"}[row.kind]
        raise ConfigError(f"{where}: {row.key} must be {expected}, not {row.shown(text)!r}") from None
    check(row, value, where)
    return value


def check(row: Setting, value: object, where: str) -> None:
    """Hold a typed value against its bounds and choices. Raises ConfigError."""
    if row.choices and value not in row.choices:
        raise ConfigError(f"{where}: {row.key} must be one of {', '.join(row.choices)}, not {row.shown(value)!r}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ConfigError(f"{where}: {row.key} must be a finite number, not {value}")
        if row.minimum is not None and value < row.minimum:
            raise ConfigError(f"{where}: {row.key} must be at least {row.minimum:g}, not {value:g}")
        if row.maximum is not None and value > row.maximum:
            raise ConfigError(f"{where}: {row.key} must be at most {row.maximum:g}, not {value:g}")


def read_file(path: Path) -> dict[str, tuple[str, str]]:
    """Key -> (text, where) of a `.toml` file (tables only group) or of a broker.conf-style `key=value` file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8") from error
    return _read_toml(path, text) if path.suffix == ".toml" else _read_properties(path, text)


def _read_toml(path: Path, text: str) -> dict[str, tuple[str, str]]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    found: dict[str, tuple[str, str]] = {}
    tables: list[Mapping[str, Any]] = [document]
    while tables:
        for key, value in tables.pop().items():
            if isinstance(value, dict):
                tables.append(value)
            else:
                found[key] = (str(value), str(path))
    return found


def _read_properties(path: Path, text: str) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise ConfigError(f"{path}:{number}: expected key=value; the line is not repeated, it may hold a secret")
        found[key.strip()] = (value, f"{path}:{number}")
    return found


def _from_env(
    table: Mapping[str, Setting], env: Mapping[str, str], elsewhere: Mapping[str, Setting]
) -> dict[str, Resolved]:
    keys = {name for row in table.values() for name in (row.name, row.key)}
    foreign = {name for row in elsewhere.values() for name in (row.name, row.key)} - keys
    found: dict[str, Resolved] = {}
    for prefix in (PULSAR_ENV_PREFIX, ENV_PREFIX):
        for variable in sorted(env):
            if not variable.startswith(prefix) or variable in ENV_RESERVED:
                continue
            key = variable.removeprefix(prefix)
            key = key.lower() if key.isupper() else key
            if key in foreign:
                continue
            row = find(table, key, f"environment variable {variable}")
            found[row.name] = Resolved(parse(row, env[variable], variable), variable)
    return found


def resolve(
    cls: type,
    file: Path | None,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    others: Sequence[type] = (),
) -> dict[str, Resolved]:
    """Every field's value and source. `flags` holds typed values by field name; None means the flag was not given.

    Variables of the environment that only a configuration among `others` knows are left to those.
    """
    table = table_of(cls)
    elsewhere = {
        f"{number} {name}": row for number, other in enumerate(others) for name, row in table_of(other).items()
    }
    found = {name: Resolved(row.default, "default") for name, row in table.items()}
    for key, (text, where) in (read_file(file) if file else {}).items():
        row = find(table, key, where)
        if text.strip():  # broker.conf writes "unset" as an empty value
            found[row.name] = Resolved(parse(row, text, where), where)
    found.update(_from_env(table, env, elsewhere))
    for name, value in flags.items():
        if value is not None:
            check(table[name], value, "flag")
            found[name] = Resolved(value, "flag")
    return found


def load_settings(
    cls: type[C],
    file: Path | None,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    others: Sequence[type] = (),
) -> C:
    """An instance of `cls` from all four sources, see `resolve`. Raises ConfigError with one line that names the fix."""
    return cls(**{name: value for name, (value, _) in resolve(cls, file, env, flags, others).items()})
