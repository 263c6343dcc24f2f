"""`magnetar pipeline stop` and `drop`."""

from __future__ import annotations

import shutil
from typing import Final

import click

from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit_done, json_option
from magnetar.cli.pipeline.access import ask_driver, meant
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.views.control.driver_lock import holder

OURS: Final = (
    "manifests", "tables", "changelogs", "pins", "checkpoint", "control", "sinks", "status.json", "driver.lock",
)  # fmt: skip
"""What `drop` removes: nothing else of a directory, whatever somebody called a pipeline."""


@click.command("stop")
@click.argument("name", required=False)
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds to wait."
)
@json_option
def stop_command(name: str | None, timeout_s: float, as_json: bool) -> None:
    """Stop pipeline NAME after its running epoch. Succeeds as well if it is not running."""
    found = meant(name)
    if holder(found.place.local) is None:
        if not as_json:
            click.echo(f"{found.place.name} is not running", err=True)
        emit_done(as_json, name=found.place.name, stopped=False, epoch=found.status.epoch)
        return
    answer = ask_driver(found.place, "stop", timeout_s)
    if not as_json:
        click.echo(f"{found.place.name} stopped at epoch {answer['epoch']}", err=True)
    emit_done(as_json, name=found.place.name, stopped=True, epoch=answer["epoch"])


@click.command("drop")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
def drop_command(name: str, yes: bool, as_json: bool) -> None:
    """Delete pipeline NAME with its views and all of its state. Topics and the output of sinks stay.

    The subscriptions that keep its position in the topics stay as well; `magnetar topics unsubscribe` removes them.
    """
    found = meant(name)
    place = found.place
    if (running := holder(place.local)) is not None:
        raise CommandError(
            f"pipeline {place.name} runs (process {running.pid}); first: magnetar pipeline stop {place.name}"
        )
    if not yes:
        views = ", ".join(found.views()) or "no views"
        click.confirm(f"Delete pipeline {place.name} in {place.directory} ({views})?", abort=True, err=True)
    files = StateFiles(place.directory)
    for entry in OURS:
        if files.fs.exists(files.path(entry)):
            files.fs.rm(files.path(entry), recursive=True)
    if not files.local:
        shutil.rmtree(place.local, ignore_errors=True)
    elif place.local.is_dir() and not any(place.local.iterdir()):
        place.local.rmdir()
    emit_done(as_json, name=place.name, dropped=True)
