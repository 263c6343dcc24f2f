"""The options of WITH (...): text by name, in the order written, with credentials kept out of every printed form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

REDACTED = "<redacted>"
"""What stands in a printed form, and in a manifest, where a credential was."""

_SECRET_NAME = re.compile(
    r"pass(word|phrase|wd)|secret|token|credential|private|auth[._-]?params|(access|api|shared|account)[._-]?key|jwt|signature|sas$|cookie",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]*@")
_URL_SECRET = re.compile(r"(?i)([?&;](?:[\w.-]*(?:token|password|secret|signature|key|jwt)[\w.-]*)=)[^&;\s]*")


def redact(name: str, value: str) -> str:
    """`value` as it may be shown: nothing of it when the name is a credential's, else without what a URL carries."""
    if _SECRET_NAME.search(name):
        return REDACTED
    return _URL_SECRET.sub(rf"\g<1>{REDACTED}", _USER_INFO.sub(f"{REDACTED}@", value))


class Options(Mapping[str, str]):
    """An immutable mapping; equal when names and values are equal, in any order. `repr` and `str` never hold a credential."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and self._values == other._values

    def __repr__(self) -> str:
        return f"Options({self.redacted()._values!r})"

    def redacted(self) -> Options:
        """The same options with `<redacted>` in place of every credential."""
        return Options({name: redact(name, value) for name, value in self._values.items()})

    def has_redacted(self) -> bool:
        """Whether a credential is missing because these options went through a manifest."""
        return any(REDACTED in value for value in self._values.values())
