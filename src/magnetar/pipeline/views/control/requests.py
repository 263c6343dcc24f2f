"""What other processes ask of a running driver, and its answers: files in the pipeline's `control` directory.

A request is `NUMBER.request.json`, its answer `NUMBER.answer.json`. Whoever asked takes the answer away; what nobody took is removed when a
driver starts.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args
from uuid import uuid4

from magnetar.base.clock import Clock

DIRECTORY: Final = "control"
REQUEST: Final = ".request.json"
ANSWER: Final = ".answer.json"

Kind = Literal["stop", "rescale", "adapt", "apply"]


@dataclass(frozen=True, slots=True)
class Request:
    """`units` of a rescale; of `adapt`, which lets them follow the load, the most there may be, and `least`. `text`: of `apply`, statements
    that change the pipeline."""

    number: str
    kind: str
    units: int | None = None
    least: int = 1
    text: str = ""

    def problem(self, vnodes: int) -> str | None:
        """Why it cannot be done, or None. `vnodes`: of the pipeline, which cannot have more units."""
        if self.kind == "stop":
            return None
        if self.kind not in get_args(Kind):
            return f"a driver knows {', '.join(get_args(Kind))}, not {self.kind!r}"
        if self.kind == "apply":
            return None if self.text.strip() else "there is no statement in it"
        if self.kind == "adapt" and self.units is None:
            return None
        if not isinstance(self.units, int) or isinstance(self.units, bool) or self.units < 1:
            return f"{self.units} units: give a whole number of at least 1"
        if self.units > vnodes:
            return f"{self.units} units for {vnodes} vnodes: some would have nothing, take fewer units"
        if self.kind == "adapt" and not 1 <= self.least <= self.units:
            return f"between {self.least} and {self.units} units there is none"
        return None


def ask(directory: Path, clock: Clock, kind: Kind, units: int | None = None, least: int = 1, text: str = "") -> str:
    """Leave a request for the driver; its number, to ask for the answer with."""
    number = f"{clock.now_ms():013d}-{uuid4().hex}"
    document = {"kind": kind, "units": units, "least": least, **({"text": text} if text else {})}
    write_document(directory / DIRECTORY / f"{number}{REQUEST}", document)
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
            text = str(document.get("text", ""))
            found.append(Request(number, str(document.get("kind")), document.get("units"), least, text))
    return found


def answer(directory: Path, request: Request, document: dict[str, Any]) -> None:
    """`document`: at least `done`, and `error` when that is false."""
    write_document(directory / DIRECTORY / f"{request.number}{ANSWER}", document)
    withdraw(directory, request.number)


def write_document(path: Path, document: object) -> None:
    """Replace a JSON file at once; directories are made. Not synced: it describes a process, which a lost machine takes along."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        temporary.write_text(json.dumps(document, default=str), encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_document(path: Path) -> dict[str, Any] | None:
    """None when there is no such file, or something else than a JSON object in it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
