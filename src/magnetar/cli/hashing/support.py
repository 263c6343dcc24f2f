"""What `hash`, `ring` and `vnodes` share: lists of nodes, errors as usage errors, and a progress bar that shows after a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from magnetar.hashing.errors import DuplicateMemberError, EmptyRingError, HashingError, InvalidWeightError

PROGRESS_AFTER_S = 1.0
"""A command that ends sooner draws no progress bar."""

F = TypeVar("F", bound=Callable[..., Any])


def hashing_errors(function: F) -> F:
    """Turn the library's errors into one line on stderr and exit code 2: it is always the input that is wrong."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except HashingError as error:
            raise click.UsageError(str(error)) from error

    return wrapper  # type: ignore[return-value]  # the same signature, which wraps() cannot tell


def parse_nodes(text: str) -> dict[str, float]:
    """`A,B=2,C` as names with weights, 1 by default. EmptyRingError, DuplicateMemberError, InvalidWeightError."""
    nodes: dict[str, float] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        name, equals, weight = part.strip().partition("=")
        if name in nodes:
            raise DuplicateMemberError(f"{name!r} is given twice: give every name once, or another name")
        try:
            nodes[name] = float(weight) if "." in weight else int(weight) if equals else 1
        except ValueError:
            raise InvalidWeightError(f"{part.strip()!r}: a weight is a number above 0, as in {name}=2") from None
        if nodes[name] <= 0:
            raise InvalidWeightError(f"{name!r} has weight {weight}: give a number above 0, or leave it out")
    if not nodes:
        raise EmptyRingError(f"{text!r} names nobody: give a list such as A,B,C or A=2,B")
    return nodes


def plot_option(function: F) -> F:
    """The `--plot` flag, given to the command as `plot`."""
    return click.option(
        "--plot",
        type=click.Path(dir_okay=False, path_type=Path),
        callback=_check_plot,
        help="Draw the result into FILE.svg or FILE.png.",
    )(function)


def _check_plot(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> Path | None:
    # Before the work, not after it.
    if value is not None and value.suffix.lower() not in (".svg", ".png"):
        raise click.BadParameter(f"{value} ends in {value.suffix or 'nothing'}: name a .svg or a .png")
    if value is not None and not value.absolute().parent.is_dir():
        raise click.BadParameter(f"directory {value.absolute().parent} does not exist: make it first")
    return value


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[int], None] | None]:
    """Something to call with the number of units done; draws on stderr, only on a terminal and only past a second."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total)
    begun = time.monotonic()
    shown = False

    def done(units: int) -> None:
        nonlocal shown
        bar.update(task, completed=units)
        if not shown and time.monotonic() - begun > PROGRESS_AFTER_S:
            shown = True
            bar.start()

    try:
        yield done
    finally:
        if shown:
            bar.stop()
