"""Counts the calls of magnetar's own functions on one thread: a measure of the message path that no other work on the machine disturbs."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import magnetar

_OURS = str(Path(magnetar.__file__).parent)


class Calls:
    """`with Calls() as calls:` counts; `total`, and `table()` says which."""

    def __init__(self) -> None:
        self._counts: Counter[Any] = Counter()

    def __enter__(self) -> Calls:
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)

    def __add__(self, other: Calls) -> Calls:
        both = Calls()
        both._counts = self._counts + other._counts
        return both

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._counts[frame.f_code] += 1

    def _ours(self) -> dict[str, int]:
        return {
            f"{code.co_filename[len(_OURS) + 1 :]}:{code.co_qualname}": count
            for code, count in self._counts.most_common()
            if code.co_filename.startswith(_OURS)
        }

    @property
    def total(self) -> int:
        return sum(self._ours().values())

    def table(self, entries: int) -> str:
        """Calls an entry by function, most frequent first."""
        return "\n".join(f"{count / entries:8.2f}  {name}" for name, count in self._ours().items())
