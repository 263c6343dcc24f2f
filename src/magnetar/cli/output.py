"""What commands print: JSON when asked, a rich table on a terminal, tab-separated lines in a pipe.

Much of it was written by strangers: names, properties, payloads. What would control a terminal is escaped here, and so is what would begin
another line or column in a pipe. Payloads go as they are only where nobody looks at them (`echo_payload`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from magnetar.base.printable import json_line, lines, one_line

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """The `--json` flag, given to the command as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def on_terminal() -> bool:
    """Whether a person looks at stdout."""
    return sys.stdout.isatty()


def print_json(value: object) -> None:
    """One JSON document on one line; `jq` and line readers both take it."""
    click.echo(json_line(json.dumps(value, ensure_ascii=False, default=str)))


def echo_text(text: str) -> None:
    """Lines with names or documents of strangers in them."""
    click.echo(lines(text))


def echo_payload(text: str, before: str = "") -> None:
    """What a producer sent, `before` it what belongs to the same line: escaped on a terminal, as it is in a pipe."""
    shown = one_line(text) if on_terminal() else text
    click.echo(
        one_line(before) + shown, color=True
    )  # else click would take sequences out of what is for the next program


def emit(rows: Sequence[Mapping[str, object]], *, as_json: bool, title: str = "") -> None:
    """Rows with the same keys: a JSON list, a table, or tab-separated lines under a heading."""
    if as_json:
        print_json(list(rows))
    elif on_terminal():
        _draw(rows, title)
    elif rows:
        click.echo("\t".join(one_line(name) for name in rows[0]))
        for row in rows:
            click.echo("\t".join(cell(value) for value in row.values()))


def emit_record(record: Mapping[str, object], *, as_json: bool, title: str = "") -> None:
    """One object: a JSON object, or a line for each of its fields."""
    if as_json:
        print_json(record)
    elif on_terminal():
        _draw([{"name": name, "value": value} for name, value in record.items()], title)
    else:
        for name, value in record.items():
            click.echo(f"{one_line(name)}\t{cell(value)}")


def emit_done(as_json: bool, **record: object) -> None:
    """What a command changed: a JSON object when asked; else nothing, as a command that worked says."""
    if as_json:
        print_json(record)


def cell(value: object) -> str:
    """A value as a person reads it, on one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, int):
        return str(value)
    return "" if value is None else one_line(str(value))


def _draw(rows: Sequence[Mapping[str, object]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        click.echo("(none)")
        return
    table = Table(
        title=Text(one_line(title)) if title else None, header_style="bold"
    )  # Text: no markup in it is obeyed
    for name, value in rows[0].items():
        table.add_column(
            Text(one_line(name)), justify="right" if isinstance(value, int | float) else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(f"{value:,}" if type(value) is int else cell(value)) for value in row.values()))
    Console().print(table)


@contextmanager
def progress_bar(what: str, total: int | None = None) -> Iterator[Callable[[int, int | None], None]]:
    """`advance(done, total)` draws; `total` None: as it was."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, total: bar.update(task, completed=done, total=total)
