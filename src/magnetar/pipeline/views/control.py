"""What other processes ask of a running driver, and its answers: files in the pipeline's `control` directory.

A request is `NUMBER.request.json`, its answer `NUMBER.answer.json`. Whoever asked takes the answer away; what nobody took is removed when a
driver starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args
from uuid import uuid4

from magnetar.base.clock import Clock
from magnetar.pipeline.views.local_files import read_document, write_document

DIRECTORY: Final = "control"
REQUEST: Final = ".request.json"
ANSWER: Final = ".answer.json"

Kind = Literal["stop", "rescale", "adapt"]


@dataclass(frozen=True, slots=True)
class Request:
    """`units` of a rescale; of `adapt`, which lets them follow the load, the most there may be, and `least`."""

    number: str
    kind: str
    units: int | None = None
    least: int = 1

    def problem(self, vnodes: int) -> str | None:
        """Why it cannot be done, or None. `vnodes`: of the pipeline, which cannot have more units."""
        if self.kind == "stop":
            return None
        if self.kind not in get_args(Kind):
            return f"a driver knows {', '.join(get_args(Kind))}, not {self.kind!r}"
        if self.kind == "adapt" and self.units is None:
            return None
        if not isinstance(self.units, int) or isinstance(self.units, bool) or self.units < 1:
            return f"{self.units} units: give a whole number of at least 1"
        if self.units > vnodes:
            return f"{self.units} units for {vnodes} vnodes: some would have nothing, take fewer units"
        if self.kind == "adapt" and not 1 <= self.least <= self.units:
            return f"between {self.least} and {self.units} units there is none"
        return None


def ask(directory: Path, clock: Clock, kind: Kind, units: int | None = None, least: int = 1) -> str:
    """Leave a request for the driver; its number, to ask for the answer with."""
    number = f"{clock.now_ms():013d}-{uuid4().hex}"
    write_document(directory / DIRECTORY / f"{number}{REQUEST}", {"kind": kind, "units": units, "least": least})
    return number


def take_answer(directory: Path, number: str) -> dict[str, Any] | None:
    """The driver's answer, once; None while there is none."""
    path = directory / DIRECTORY / f"{number}{ANSWER}"
    answer = read_document(path)
    if answer is not None:
        path.unlink(missing_ok=True)
    return answer


def withdraw(directory: Path, number: str) -> None:
    """Take a request back that nobody answered."""
    (directory / DIRECTORY / f"{number}{REQUEST}").unlink(missing_ok=True)


def clear(directory: Path) -> None:
    """Forget what was asked of an earlier driver."""
    for path in (directory / DIRECTORY).glob("*.json"):
        path.unlink(missing_ok=True)


def pending(directory: Path) -> list[Request]:
    """Requests without an answer, oldest first."""
    found = []
    for path in sorted((directory / DIRECTORY).glob(f"*{REQUEST}")):
        document = read_document(path)
        if document is not None:
            number = path.name.removesuffix(REQUEST)
            least = document.get("least", 1)
            found.append(Request(number, str(document.get("kind")), document.get("units"), least))
    return found


def answer(directory: Path, request: Request, document: dict[str, Any]) -> None:
    """`document`: at least `done`, and `error` when that is false."""
    write_document(directory / DIRECTORY / f"{request.number}{ANSWER}", document)
    withdraw(directory, request.number)
