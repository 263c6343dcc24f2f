"""How settings are read: defaults < file < environment < flags, driven by the fields of one class of settings.

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
from dataclasses import Field, FrozenInstanceError, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar, dataclass_transform

from magnetar.base.errors import ConfigError
from magnetar.base.foreign_keys import FAULTS, Effect, ForeignKeys

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
        "MAGNETAR_CLASS_ARCHIVE",
        "MAGNETAR_CLUSTER_PROCESS",
        "MAGNETAR_KERNEL",
    }
)
"""Names behind our prefix that are not settings of a server: flags of the command line, the mark of a cluster's processes, the switch
of the compiled functions."""

HIDDEN = "*****"
"""Stands where a secret is set."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")

_ALIKE = 0.6
"""An unknown key is repeated in the error only if it resembles a known one this much: else it may be a value without its key."""

OF_ANOTHER_PROCESS = "It is a setting of another kind of process."

NO_FOREIGN_KEYS = ForeignKeys()

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
    differs: str = "",
) -> Any:
    """A field of `Settings` with all that is known about it. `key` is the name in files; bounds are inclusive.

    The value of a `secret` is never shown: not by `repr`, not by `magnetar config`, not over HTTP. A `dynamic` one can change while the
    broker runs (`magnetar brokers update-dynamic-config`). `differs` says why the default is not that of the server whose key it is.
    """
    about = {"key": key, "doc": doc, "unit": unit, "minimum": minimum, "maximum": maximum, "choices": tuple(choices)}
    return field(
        default=default, metadata=about | {"secret": secret, "dynamic": dynamic, "differs": differs}, repr=not secret
    )


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Settings:
    """The base of every class of settings: a frozen dataclass whose fields are given by keyword.

    A dataclass has methods of its own compiled for each class, which with hundreds of fields is a tenth of a server's start; these are
    the same for all. No slots: of several bases only one may have them.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(kw_only=True, init=False, repr=False, eq=False)(cls)

    def __init__(self, **values: Any) -> None:
        fields = self.__dataclass_fields__
        unknown = values.keys() - fields.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no setting {', '.join(sorted(unknown))}")
        self.__dict__.update({name: values.get(name, part.default) for name, part in fields.items()})
        self.__post_init__()

    def __post_init__(self) -> None:
        """What must hold between the values. Raises ConfigError."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name, part in self.__dataclass_fields__.items() if part.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))


_KINDS = {kind.__name__: kind for kind in (bool, int, float, str, Path)}
"""What a value can be, by the annotation of its field."""


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
    differs: str

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


def table_of(cls: type) -> Mapping[str, Setting]:
    """The settings of a configuration class by field name, in the order of its fields."""
    return _read_table(cls)


@cache  # a start asks several times
def _read_table(cls: type) -> Mapping[str, Setting]:
    return {
        part.name: Setting(name=part.name, kind=_KINDS[str(part.type)], default=part.default, **part.metadata)
        for part in dataclasses.fields(cls)
    }


class KeyVerdict(NamedTuple):
    """What becomes of one key of a file, and why. `row` is the setting that it sets, `text` what it sets it to."""

    key: str
    text: str
    where: str
    effect: Effect
    because: str = ""
    row: Setting | None = None
    changed: bool = False


def find(table: Mapping[str, Setting], key: str, where: str, foreign: ForeignKeys = NO_FOREIGN_KEYS) -> Setting:
    """The setting called `key` (file key or field name). Raises ConfigError naming the nearest key, or why this one is not a setting."""
    row = _named(table, key)
    if row is not None:
        return row
    other = foreign.find(key)
    if other is not None:
        said = f"the name today is {other.name}" if other.name else f"it has no effect here. {other.because}"
        raise ConfigError(f"{where}: {key} is a key of Pulsar's; {said}")
    raise ConfigError(f"{where}: {_unknown(table, key, foreign)}")


def _named(table: Mapping[str, Setting], key: str) -> Setting | None:
    return table.get(key) or next((row for row in table.values() if row.key == key), None)


def _unknown(table: Mapping[str, Setting], key: str, foreign: ForeignKeys) -> str:
    meant = name_in(key, table.values())
    if meant:
        return f"{meant} is followed by what is not part of its name; write {meant}=VALUE"
    names = [*table, *(row.key for row in table.values()), *foreign.keys]
    folded = {name.lower(): name for name in reversed(names)}
    nearest = difflib.get_close_matches(key.lower(), list(folded), n=1, cutoff=0.0)
    alike = difflib.SequenceMatcher(None, key.lower(), nearest[0]).ratio() >= _ALIKE and _NAME.fullmatch(key)
    shown = f" {key!r}" if alike else ""
    return f"unknown key{shown}; the nearest is {folded[nearest[0]]!r}"


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


def verdicts(
    cls: type,
    written: Mapping[str, tuple[str, str]],
    others: Sequence[type] = (),
    foreign: ForeignKeys = NO_FOREIGN_KEYS,
) -> list[KeyVerdict]:
    """What becomes of each key (key -> text, where) in a configuration of `cls`, in their order.

    A key that only a configuration among `others` knows has no effect, and neither have those of `foreign`; an older name sets its
    setting where that is not written itself.
    """
    table = table_of(cls)
    elsewhere = {name for other in others for row in table_of(other).values() for name in (row.name, row.key)}
    given = {row.name for key, (text, _) in written.items() if text.strip() and (row := _named(table, key))}
    return [_verdict(table, key, text, where, elsewhere, foreign, given) for key, (text, where) in written.items()]


def _verdict(
    table: Mapping[str, Setting],
    key: str,
    text: str,
    where: str,
    elsewhere: set[str],
    foreign: ForeignKeys,
    given: set[str],
) -> KeyVerdict:
    row = _named(table, key)
    if row is not None:
        return _of_setting(row, key, text, where)
    other = foreign.find(key)
    if other is not None and other.name:
        row = _named(table, other.name)
        renamed = other.renamed(text)
        if row is None or row.name in given or not renamed:
            because = f"An older name of {other.name}, which is written itself." if row and row.name in given else ""
            return KeyVerdict(key, text, where, Effect.NONE, because or f"An older name of {other.name}.")
        return _of_setting(row, key, renamed, where)._replace(because=f"An older name of {other.name}.")
    if other is not None:
        if key in elsewhere and key not in foreign.keys:
            return KeyVerdict(key, text, where, Effect.NONE, OF_ANOTHER_PROCESS)
        effect = Effect.NONE if other.takes(text) else Effect.REFUSED
        return KeyVerdict(key, text, where, effect, other.because, changed=other.changed(text))
    if key in elsewhere:
        return KeyVerdict(key, text, where, Effect.NONE, OF_ANOTHER_PROCESS)
    return KeyVerdict(key, text, where, Effect.UNKNOWN, _unknown(table, key, foreign))


def _of_setting(row: Setting, key: str, text: str, where: str) -> KeyVerdict:
    if text.strip():  # broker.conf writes "unset" as an empty value
        try:
            parse(row, text, where)
        except ConfigError as error:
            return KeyVerdict(key, text, where, Effect.INVALID, str(error).removeprefix(f"{where}: "), row)
    return KeyVerdict(key, text, where, Effect.ACTS, "" if text.strip() else "Empty: the default.", row)


def _refuse(verdict: KeyVerdict) -> None:
    """Raises ConfigError for what a server cannot start with."""
    if verdict.effect is Effect.REFUSED:
        raise ConfigError(
            f"{verdict.where}: {verdict.key} cannot be obeyed. {verdict.because} Leave it out to do without"
        )
    if verdict.effect in FAULTS:
        raise ConfigError(f"{verdict.where}: {verdict.because}")


def _from_env(
    cls: type, env: Mapping[str, str], others: Sequence[type], foreign: ForeignKeys
) -> tuple[dict[str, Resolved], list[KeyVerdict]]:
    table = table_of(cls)
    elsewhere = {name for other in others for row in table_of(other).values() for name in (row.name, row.key)}
    found: dict[str, Resolved] = {}
    idle: list[KeyVerdict] = []
    for prefix in (PULSAR_ENV_PREFIX, ENV_PREFIX):
        for variable in sorted(env):
            if not variable.startswith(prefix) or variable in ENV_RESERVED:
                continue
            key = variable.removeprefix(prefix)
            key = key.lower() if key.isupper() else key
            row = _named(table, key)
            if row is None and key in elsewhere:
                continue
            if row is None and foreign.find(key):
                verdict = _verdict(table, key, env[variable], variable, elsewhere, foreign, set())
                _refuse(verdict)
                if verdict.row is None:
                    idle.append(verdict)
                    continue
                found[verdict.row.name] = Resolved(parse(verdict.row, verdict.text, variable), variable)
                continue
            row = find(table, key, f"environment variable {variable}", foreign)
            found[row.name] = Resolved(parse(row, env[variable], variable), variable)
    return found, idle


class Reading(NamedTuple):
    """Every field's value and source, and the keys that were accepted although they have no effect."""

    values: dict[str, Resolved]
    without_effect: list[KeyVerdict]


def read_settings(
    cls: type,
    file: Path | None,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    others: Sequence[type] = (),
    foreign: ForeignKeys = NO_FOREIGN_KEYS,
) -> Reading:
    """Defaults, the file, the environment and flags, each over those before it. Raises ConfigError with one line that names the fix.

    `flags` holds typed values by field name; None means the flag was not given. Variables of the environment that only a configuration
    among `others` knows are left to those.
    """
    table = table_of(cls)
    found = {name: Resolved(row.default, "default") for name, row in table.items()}
    without_effect = []
    for verdict in verdicts(cls, read_file(file) if file else {}, others, foreign):
        _refuse(verdict)
        if verdict.row is None:
            without_effect.append(verdict)
        elif verdict.text.strip():
            found[verdict.row.name] = Resolved(parse(verdict.row, verdict.text, verdict.where), verdict.where)
    of_env, idle = _from_env(cls, env, others, foreign)
    found.update(of_env)
    for name, value in flags.items():
        if value is not None:
            check(table[name], value, "flag")
            found[name] = Resolved(value, "flag")
    return Reading(found, without_effect + idle)


def resolve(
    cls: type,
    file: Path | None,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    others: Sequence[type] = (),
    foreign: ForeignKeys = NO_FOREIGN_KEYS,
) -> dict[str, Resolved]:
    """Every field's value and source, see `read_settings`."""
    return read_settings(cls, file, env, flags, others, foreign).values


def load_settings(
    cls: type[C],
    file: Path | None,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    others: Sequence[type] = (),
    foreign: ForeignKeys = NO_FOREIGN_KEYS,
) -> C:
    """An instance of `cls` from all four sources, see `read_settings`."""
    return cls(**{name: value for name, (value, _) in resolve(cls, file, env, flags, others, foreign).items()})
