"""`magnetar pipeline subscribe`: the changes of a view, as they commit."""

from __future__ import annotations

import time
from typing import Final

import click

from magnetar.base.clock import SystemClock
from magnetar.cli.errors import CommandError
from magnetar.cli.output import cell, on_terminal, output_options, print_json_line
from magnetar.cli.pipeline.query import place_meant, shown_value

POLL_S: Final = 0.05


@click.command("subscribe")
@click.argument("view")
@click.option(
    "-p", "--pipeline", envvar="MAGNETAR_PIPELINE", show_envvar=True, help="Name; may be left out if there is one."
)
@click.option("--no-snapshot", is_flag=True, help="Begin with the next change instead of the rows that there are.")
@click.option("--since-epoch", type=click.IntRange(0), help="Begin behind this epoch, which must be kept.")
@click.option("--count", type=click.IntRange(1), help="End after so many changes.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0), help="End after so many seconds without a change.")
@output_options
def subscribe_command(
    view: str,
    pipeline: str | None,
    no_snapshot: bool,
    since_epoch: int | None,
    count: int | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Print the changes of VIEW as they commit, until Ctrl-C: on a terminal tab-separated, elsewhere an object a line.

    `_epoch` says which epoch it was, `_op` what happened: insert, delete, and update_delete followed by update_insert, the row before and
    the row after.
    """
    from magnetar.pipeline.serving.reader import Views
    from magnetar.pipeline.serving.sql.translate import QueryError
    from magnetar.pipeline.serving.subscription import Feed
    from magnetar.pipeline.state.files import StateFiles

    feed = Feed(Views(StateFiles(place_meant(pipeline).directory), SystemClock()))
    try:
        subscription = feed.subscribe(view, rows_first=not no_snapshot, since=since_epoch)
        names = [column.name for column in subscription.columns]
        if not as_json and on_terminal():
            click.echo("\t".join(names))
        printed, heard_s = 0, time.monotonic()
        while count is None or printed < count:
            rows = subscription.next(0)
            if rows is None:
                if timeout_s is not None and time.monotonic() - heard_s > timeout_s:
                    return
                if not feed.refresh():
                    time.sleep(POLL_S)
                continue
            for row in rows.to_pylist()[: None if count is None else count - printed]:
                plain = {name: shown_value(value) for name, value in row.items()}
                if as_json:
                    print_json_line(plain)
                else:
                    click.echo("\t".join(cell(value) for value in plain.values()))
                printed += 1
            heard_s = time.monotonic()
    except QueryError as error:
        raise CommandError(f"{error.text}; {error.hint}" if error.hint else error.text) from error
