"""`magnetar demo`: flags, and a folder that is gone afterwards."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from pathlib import Path

import click

from magnetar.cli.errors import CommandError
from magnetar.cli.output import json_option


@click.group("demo")
def demo_group() -> None:
    """See real data flow, checked to the last message."""


@demo_group.command("flights")
@click.option("--messages", type=click.IntRange(100), help="Only the first so many flights.  [default: all 336,776]")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Keep the server's data here.")
@json_option
def flights_command(messages: int | None, data_dir: Path | None, as_json: bool) -> None:
    """Stream the flights that left New York in 2013 through a server of our own.

    Keyed by tail number, over four partitions, to four Key_Shared consumers, each a process. Half way one of them is killed
    (kill -9) and a fifth joins. At the end every message is accounted for; the exit code is 1 when anything is wrong.
    """
    from magnetar.cli.demo import flights, report, screen, source

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that server and consumers are stopped on the way out
    data = source.load(messages)
    folder = Path(tempfile.mkdtemp(prefix="magnetar-demo-")) if data_dir is None else data_dir
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise CommandError(f"{folder} is not empty; the demo starts from nothing")
    try:
        with screen.screen(len(data)) as display:
            display.say(f"{len(data):,} flights of {len(set(data.keys)):,} aircraft")
            outcome = flights.run(data, folder, display)
    finally:
        if data_dir is None:
            shutil.rmtree(folder, ignore_errors=True)
    (report.as_document if as_json else report.as_tables)(outcome)
    if outcome.verdict.problems:
        raise CommandError("; ".join(outcome.verdict.problems))
