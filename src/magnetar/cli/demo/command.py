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
from magnetar.cli.servers.serve import keep_files_private


@click.group("demo")
def demo_group() -> None:
    """Run a demonstration with real data, checked to the last message."""
    keep_files_private()


@demo_group.command("flights")
@click.option("--messages", type=click.IntRange(100), help="Use only the first N flights.  [default: all 336,776]")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for the server's data, which is kept.",
)
@click.option("--views/--no-views", default=True, help="Continue with views on Spark, or stop after the consumers.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("magnetar-demo-vnodes.svg"),
    show_default=True,
    help="Draw the map of vnodes before and after the rescale into this file.",
)
@json_option
def flights_command(messages: int | None, data_dir: Path | None, views: bool, plot: Path, as_json: bool) -> None:
    """Stream the flights that left New York in 2013 through a server of our own, and keep views of them.

    Keyed by tail number, over four partitions, to four Key_Shared consumers, each a process. Half way one of them is killed
    (kill -9) and a fifth joins. Every message is accounted for. Then Spark turns the same topic into two views (delays per carrier and
    hour; routes joined with airports), rescaled from two to three units half way, read back and compared with pandas over the
    file, row by row. The exit code is 1 when anything is wrong.
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
            outcome = flights.run(data, folder, display, views, plot)
    finally:
        if data_dir is None:
            shutil.rmtree(folder, ignore_errors=True)
    (report.as_document if as_json else report.as_tables)(outcome)
    if outcome.problems:
        raise CommandError("; ".join(outcome.problems))


@demo_group.command("geo")
@click.option(
    "--seconds",
    type=click.IntRange(6, 600),
    default=24,
    show_default=True,
    help="Duration of the message flow in seconds.",
)
@click.option(
    "--rate", type=click.IntRange(1, 1000), default=100, show_default=True, help="Messages per second in each cluster."
)
@click.option(
    "--interval",
    "interval_ms",
    type=click.IntRange(50, 10_000),
    default=500,
    show_default=True,
    help="Milliseconds between snapshots.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for the servers' data, which is kept.",
)
@json_option
def geo_command(seconds: int, rate: int, interval_ms: int, data_dir: Path | None, as_json: bool) -> None:
    """Replicate a topic among three clusters, with a consumer that fails over twice.

    It moves from west to central, where the cluster is killed (kill -9) under it, and ends in east. The table at the end says what was
    repeated after each failover; the exit code is 1 when anything was skipped.
    """
    from magnetar.cli.demo import geo, geo_report, screen

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped on the way out
    folder = Path(tempfile.mkdtemp(prefix="magnetar-demo-")) if data_dir is None else data_dir
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise CommandError(f"{folder} is not empty; the demo starts from nothing")
    try:
        with screen.screen(seconds * rate * len(geo.CLUSTERS)) as display:
            outcome = geo.run(folder, seconds, rate, interval_ms, display)
    finally:
        if data_dir is None:
            shutil.rmtree(folder, ignore_errors=True)
    (geo_report.as_document if as_json else geo_report.as_tables)(outcome)
    if outcome.skipped:
        raise CommandError(f"{len(outcome.skipped)} messages were skipped, the first {outcome.skipped[0]}")
