"""Progress of the demo: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import click

if TYPE_CHECKING:
    from rich.progress import TaskID

LINE_INTERVAL_S = 2.0


class Screen(Protocol):
    """Shows counts out of `total`, and remarks."""

    def __enter__(self) -> Screen: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None: ...

    def update(self, counts: dict[str, int]) -> None: ...


class Lines:
    """Plain text on stderr, for pipes, logs and CI."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._started = time.monotonic()
        self._next = 0.0

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def say(self, text: str) -> None:
        click.echo(f"{time.monotonic() - self._started:6.1f} s  {text}", err=True)

    def update(self, counts: dict[str, int]) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_INTERVAL_S
            shown = {name: count for name, count in counts.items() if not name.startswith("consumer-")}
            self.say(", ".join(f"{name} {count:,} of {self._total:,}" for name, count in shown.items()))


class Bars:
    """rich's progress bars."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._total = total
        self._tasks: dict[str, TaskID] = {}
        columns = (TextColumn("{task.description:<12}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)

    def update(self, counts: dict[str, int]) -> None:
        for name, count in counts.items():
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=self._total)
            self._progress.update(self._tasks[name], completed=count)


def screen(total: int) -> Screen:
    """Bars where a person looks, lines elsewhere."""
    return Bars(total) if sys.stderr.isatty() else Lines(total)
