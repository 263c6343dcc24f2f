"""`magnetar pipeline serve`: the views of pipelines for psql, drivers and dashboards."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import click

from magnetar.cli.errors import CommandError
from magnetar.cli.pipeline.query import place_meant
from magnetar.cli.servers.serve import configuration, serve, server_options
from magnetar.processes.configurations import ViewServerConfig


@click.command("serve")
@click.argument("names", nargs=-1)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port of PostgreSQL's protocol; 0 = any free.  [default: 5433]"
)
@click.option(
    "--http-port",
    "view_http_port",
    type=click.IntRange(-1, 65535),
    help="Port of queries over HTTP (/sql/NAME); 0 = any free.  [default: none]",
)
@click.option(
    "--memory-mb",
    "view_memory_mb",
    type=click.IntRange(64),
    help="Memory for the rows of each pipeline's views.  [default: 1024]",
)
@click.option("--until-stdin-ends", is_flag=True, hidden=True, help="End when stdin does.")
@server_options
@click.pass_context
def serve_command(
    ctx: click.Context,
    /,
    names: tuple[str, ...],
    config_file: Path | None,
    assignments: tuple[str, ...],
    until_stdin_ends: bool,
    **flags: object,
) -> None:
    """Serve the views of pipelines NAMES (or the only one) by PostgreSQL's protocol: a pipeline is a database, without Spark. Views are
    read, tables without a connector are also written: by whoever may produce to their topics.

    When it serves, exactly one line goes to stdout: `magnetar ready postgresql://HOST:PORT/NAME ...`, with --http-port followed by
    `http://HOST:PORT/sql/NAME ...`. Logs go to stderr. The pipelines need
    not run; while they do, each statement reads the newest epoch. Without authentication only this machine is let in; TLS, tokens and roles
    are a broker's settings (`magnetar config list --for "pipeline serve"`).
    """
    places = [place_meant(name) for name in names] or [place_meant(None)]
    if len({place.name for place in places}) != len(places):
        raise CommandError(
            "two of the pipelines have the same name, which is their database's; serve them by two commands"
        )
    config = configuration(ViewServerConfig, config_file, assignments, flags)
    from magnetar.processes import view_server

    if until_stdin_ends:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    ctx.exit(serve(view_server.run(config, places)))


def _end_with_stdin() -> None:
    """Whoever started this process holds the other end: it closes when that one is gone, kill -9 included."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
