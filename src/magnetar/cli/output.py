"""What commands print: a rich table on a terminal, elsewhere indented JSON; `--json` puts it on one line, `--table` wants rows.

Commands that show what there is take both flags (`output_options`). Commands that change something print nothing, and those whose output is
text or one value (messages, logs, progress, sentences, an id) print it everywhere: they take `--json` alone (`json_option`).

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


_TABLE, _INDENTED = f"{__name__}.table", f"{__name__}.indented"
"""Keys of a click context's `meta`: whether a table was asked for, and whether JSON is indented since nobody asked for it."""


def json_option(function: F) -> F:
    """The `--json` flag, given to the command as `as_json`: of commands that change something or print text."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def output_options(function: F) -> F:
    """`--json` and `--table` of a command that shows something: `as_json` is also true where nobody looks and no table was asked for."""
    return click.option("--json", "as_json", **_JSON_OPTION)(click.option("--table", **_TABLE_OPTION)(function))


def shown_options() -> list[click.Option]:
    """The same as parameters, for commands that are put together from tables."""
    return [click.Option(["--json", "as_json"], **_JSON_OPTION), click.Option(["--table"], **_TABLE_OPTION)]


def _take_table(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta[_TABLE] = value


def _is_json(ctx: click.Context, param: click.Parameter, asked: bool) -> bool:
    if asked and ctx.meta[_TABLE]:
        raise click.UsageError("give --json or --table, not both", ctx)
    ctx.meta[_INDENTED] = not asked and not ctx.meta[_TABLE] and not on_terminal()
    return asked or bool(ctx.meta[_INDENTED])


_JSON_OPTION: Mapping[str, Any] = {"is_flag": True, "callback": _is_json, "help": "Print JSON, on one line."}
_TABLE_OPTION: Mapping[str, Any] = {
    "is_flag": True,
    "is_eager": True,  # known when --json is decided
    "expose_value": False,
    "callback": _take_table,
    "help": "Print a table, its columns separated by tabs, where stdout is not a terminal.",
}


def on_terminal() -> bool:
    """Whether a person looks at stdout."""
    return sys.stdout.isatty()


def print_json(value: object) -> None:
    """One JSON document: on one line, which `jq` and line readers both take, if it was asked for; else indented."""
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(_INDENTED):
        text = json.dumps(value, ensure_ascii=False, default=str, indent=2)
        click.echo("\n".join(json_line(line) for line in text.split("\n")))
    else:
        print_json_line(value)


def print_json_line(value: object) -> None:
    """One of many JSON documents, each on a line of its own."""
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
    """Rows with the same keys: a JSON list, a table, or where no terminal is tab-separated lines under a heading."""
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
