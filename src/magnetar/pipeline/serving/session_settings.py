"""The settings of a client's session: what SHOW, SET and the start of a connection tell. Most are constants; few do something."""

from __future__ import annotations

import re
from typing import Final

from magnetar import __version__
from magnetar.pipeline.serving.sql.translate import QueryError

SERVER_VERSION: Final = "15.0"
"""The PostgreSQL whose catalogs clients may expect."""

REPORTED: Final = (
    "application_name",
    "client_encoding",
    "DateStyle",
    "default_transaction_read_only",
    "in_hot_standby",
    "integer_datetimes",
    "IntervalStyle",
    "is_superuser",
    "server_encoding",
    "server_version",
    "session_authorization",
    "standard_conforming_strings",
    "TimeZone",
)
"""Those that a client is told of unasked."""

_DEFAULTS: Final = {
    "application_name": "",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "client_min_messages": "notice",
    "datestyle": "ISO, MDY",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "extra_float_digits": "1",
    "idle_in_transaction_session_timeout": "0",
    "implicit_flush": "off",
    "in_hot_standby": "off",
    "integer_datetimes": "on",
    "intervalstyle": "postgres",
    "is_superuser": "off",
    "jit": "off",
    "lc_collate": "C.UTF-8",
    "lc_ctype": "C.UTF-8",
    "lock_timeout": "0",
    "max_identifier_length": "63",
    "max_index_keys": "32",
    "row_security": "on",
    "search_path": '"$user", public',
    "server_encoding": "UTF8",
    "server_version": f"{SERVER_VERSION} (magnetar {__version__})",
    "server_version_num": "150000",
    "session_authorization": "",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "timezone": "UTC",
    "transaction_isolation": "read committed",
    "transaction_read_only": "off",
    "version": f"PostgreSQL {SERVER_VERSION} (magnetar {__version__})",
}

_FIXED: Final = {
    "client_encoding": re.compile(r"'?(utf-?8|unicode|default)'?", re.IGNORECASE),
    "standard_conforming_strings": re.compile(r"on|true|yes|1", re.IGNORECASE),
    "datestyle": re.compile(r"iso\b.*|default", re.IGNORECASE),
    "bytea_output": re.compile(r"hex|default", re.IGNORECASE),
    "intervalstyle": re.compile(r"postgres|default", re.IGNORECASE),
}
"""Settings that have one value here, and how clients write it."""

_READ_ONLY: Final = (
    "server_version",
    "server_version_num",
    "server_encoding",
    "is_superuser",
    "integer_datetimes",
    "lc_collate",
    "lc_ctype",
)

_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000}


class SessionSettings:
    """Of one connection. `values` by lower-case name."""

    def __init__(self, user: str) -> None:
        self.values = {**_DEFAULTS, "session_authorization": user}

    def show(self, name: str) -> str:
        """Raises QueryError."""
        name = _known_name(name)
        if name not in self.values:
            raise QueryError("42704", f'unrecognized configuration parameter "{name}"')
        return self.values[name]

    def set(self, name: str, value: str) -> str:
        """The remark that a client must be given, or nothing. Names that are not known are kept, as clients set what they like.

        Raises QueryError for a value that would change what the client reads.
        """
        name = _known_name(name)
        if name in _READ_ONLY:
            raise QueryError("55P02", f'parameter "{name}" cannot be changed')
        pattern = _FIXED.get(name)
        if pattern is not None:
            if not pattern.fullmatch(value.strip()):
                raise QueryError("22023", f'{name} has the value "{self.values[name]}" here and no other')
            return ""
        if name == "timezone":
            same = value.strip().lower() in ("utc", "etc/utc", "gmt", "default", "local", "z", "0")
            return "" if same else f"TimeZone stays UTC: instants are shown with +00 instead of in {value}"
        if name == "statement_timeout":
            value = str(milliseconds(value))
        self.values[name] = self.values.get(name, "") if value.lower() == "default" else value
        return ""

    def reset(self, name: str) -> None:
        for each in self.values if name == "all" else (_known_name(name),):
            if each in _DEFAULTS and each != "session_authorization":
                self.values[each] = _DEFAULTS[each]

    def reported(self) -> list[tuple[str, str]]:
        """With the spelling that clients know."""
        return [(name, self.values[name.lower()]) for name in REPORTED]

    @property
    def statement_timeout_s(self) -> float | None:
        value = int(self.values["statement_timeout"])
        return value / 1000 if value else None


def milliseconds(text: str) -> int:
    """Of `1500`, `2s`, `1min`. Raises QueryError."""
    found = re.fullmatch(r"\s*(\d{1,12})\s*(ms|s|min|h)?\s*", text.lower().replace("default", "0"))
    if found is None:
        raise QueryError("22023", f'"{text}" is not a time: write 1500, 2s or 1min')
    return int(found[1]) * _UNITS_MS[found[2] or ""]


def _known_name(name: str) -> str:
    name = re.sub(r"\s+", " ", name.strip().lower())
    return {
        "transaction isolation level": "transaction_isolation",
        "time zone": "timezone",
        "rw_implicit_flush": "implicit_flush",
        "session authorization": "session_authorization",
    }.get(name, name)
