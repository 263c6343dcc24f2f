"""Keys of another server's configuration files that are not settings here: such a file is read, and typing errors are still found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import NamedTuple


class Effect(StrEnum):
    """What becomes of a key in a file."""

    ACTS = "acts"
    NONE = "no effect"
    REFUSED = "refused"
    INVALID = "invalid"
    UNKNOWN = "unknown"


FAULTS = frozenset({Effect.REFUSED, Effect.INVALID, Effect.UNKNOWN})
"""With one of these a server does not start."""


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A key that the other server knows.

    `because` says why it has no effect; where that would do harm (`refused`), only the default and `accepted` values are taken. A key
    with a `name` is an older one of that setting, whose value is this one's times `factor`.
    """

    default: str
    because: str = ""
    refused: bool = False
    accepted: tuple[str, ...] = ()
    name: str = ""
    factor: int = 0

    def changed(self, text: str) -> bool:
        """Whether a file says something else than the other server does by itself."""
        return not _same(text, self.default)

    def takes(self, text: str) -> bool:
        """Whether not to obey it does no harm."""
        return not self.refused or any(_same(text, value) for value in ("", self.default, *self.accepted))

    def renamed(self, text: str) -> str:
        """The text for the setting of today's name; empty where it was left to that."""
        try:
            number = float(text) if self.factor else 1.0
        except ValueError:
            return text
        if number < 0 or not text.strip():
            return ""
        return str(int(number * self.factor)) if self.factor else text


class ForeignList(NamedTuple):
    """What `ForeignKeys` looks into."""

    keys: Mapping[str, ForeignKey]
    prefixes: Mapping[str, str]


class ForeignKeys:
    """All of them: by key, and by how keys begin. The list is read when somebody asks; most starts do not."""

    def __init__(self, read: Callable[[], ForeignList] = lambda: ForeignList({}, {})) -> None:
        self._read = cache(read)

    @property
    def keys(self) -> Mapping[str, ForeignKey]:
        return self._read().keys

    @property
    def prefixes(self) -> Mapping[str, str]:
        return self._read().prefixes

    def find(self, key: str) -> ForeignKey | None:
        """None: the other server does not know it either."""
        if key in self.keys:
            return self.keys[key]
        because = next((text for prefix, text in self.prefixes.items() if key.startswith(prefix)), "")
        return ForeignKey("", because) if because else None


def _same(text: str, default: str) -> bool:
    text, default = text.strip().lower(), default.strip().lower()
    try:
        return float(text) == float(default)
    except ValueError:
        return {part.strip() for part in text.split(",")} == {part.strip() for part in default.split(",")}
