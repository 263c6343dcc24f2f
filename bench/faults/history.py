"""A history as Jepsen writes it: one operation is an `invoke` and, later, an `ok`, `fail` or `info` (nobody knows) of the same process."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

Event = dict[str, Any]
"""`index`, `time` (ns), `process`, `type`, `f`, `value`; further keys where a workload needs them."""


class History:
    """Events of all threads, in one order: what is recorded before another thing begins has the smaller index."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._began_ns = time.monotonic_ns()

    def add(self, process: int | str, kind: str, f: str, value: Any, **more: Any) -> None:
        with self._lock:
            event = {"index": len(self.events), "time": time.monotonic_ns() - self._began_ns, "process": process}
            self.events.append(event | {"type": kind, "f": f, "value": value} | more)

    def write(self, folder: Path, name: str) -> None:
        """`NAME.jsonl`, one event a line, and `NAME.edn`, which Elle and Knossos read."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.jsonl").open("w") as lines, (folder / f"{name}.edn").open("w") as forms:
            for event in self.events:
                lines.write(json.dumps(event) + "\n")
                forms.write(written(event) + "\n")


def written(event: Event) -> str:
    """The event in EDN, as Elle and Knossos read it."""
    return edn({key: _spoken(key, each) for key, each in event.items()})


def read(path: Path) -> list[Event]:
    """The events of a `.jsonl`."""
    return [json.loads(line) for line in path.read_text().splitlines()]


class Keyword(str):
    """A word that EDN writes with a colon."""


def _spoken(key: str, value: Any) -> Any:
    if key in ("type", "f") or (key == "process" and isinstance(value, str)):
        return Keyword(value)
    if key == "value" and isinstance(value, list) and value and isinstance(value[0], list):
        return [[Keyword(each[0]), *each[1:]] if each and each[0] in ("append", "r") else each for each in value]
    return value


def edn(value: Any) -> str:
    """The value in EDN."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Keyword):
        return ":" + value.replace(" ", "-")
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f":{key} {edn(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + " ".join(edn(each) for each in value) + "]"
    return str(value)
