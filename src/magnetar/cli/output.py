"""What commands print: JSON when asked, a rich table on a terminal, tab-separated lines in a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """The `--json` flag, given to the command as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def on_terminal() -> bool:
    """Whether a person looks at stdout."""
    return sys.stdout.isatty()


def print_json(value: object) -> None:
    """One JSON document on one line; `jq` and line readers both take it."""
    click.echo(json.dumps(value, ensure_ascii=False, default=str))


def emit(rows: Sequence[Mapping[str, object]], *, as_json: bool, title: str = "") -> None:
    """Rows with the same keys: a JSON list, a table, or tab-separated lines under a heading."""
    if as_json:
        print_json(list(rows))
    elif on_terminal():
        _draw(rows, title)
    elif rows:
        click.echo("\t".join(rows[0]))
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
            click.echo(f"{name}\t{cell(value)}")


def emit_done(as_json: bool, **record: object) -> None:
    """What a command changed: a JSON object when asked; else nothing, as a command that worked says."""
    if as_json:
        print_json(record)


def cell(value: object) -> str:
    """A value as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, int):
        return str(value)
    return "" if value is None else str(value)


def _draw(rows: Sequence[Mapping[str, object]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    if not rows:
        click.echo("(none)")
        return
    table = Table(title=title or None, header_style="bold")
    for name, value in rows[0].items():
        table.add_column(name, justify="right" if isinstance(value, int | float) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(f"{value:,}" if type(value) is int else cell(value) for value in row.values()))
    Console().print(table)
