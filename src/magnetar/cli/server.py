"""`magnetar standalone`: flags to configuration, then the server on the fastest event loop there is."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from magnetar.base import logs
from magnetar.base.config import StandaloneConfig, load_config
from magnetar.base.errors import ConfigError
from magnetar.base.listen_settings import LOG_LEVELS
from magnetar.base.settings import find, parse, table_of
from magnetar.cli.settings import config_file_option

SWITCH_INTERVAL_S = 0.0005
GC_THRESHOLDS = (50_000, 20, 100)


@click.command("standalone")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Directory of all data.  [default: magnetar-data]")
@click.option("--port", type=click.IntRange(0, 65535), help="Binary protocol; 0 = any free.  [default: 6650]")
@click.option("--http-port", type=click.IntRange(0, 65535), help="Admin API; 0 = any free.  [default: 8080]")
@click.option("--bind-address", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--advertised-address", help="Host name clients are told.  [default: the bind address]")
@click.option(
    "--insecure-listen", is_flag=True, default=None, help="Let other machines in although nothing asks who they are."
)
@config_file_option
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any other setting; see `magnetar config list`."
)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), help="Least severe line on stderr.  [default: info]")
@click.pass_context
def standalone_command(
    ctx: click.Context, /, config_file: Path | None, assignments: tuple[str, ...], **flags: object
) -> None:
    """Serve: broker, bookie, metadata and admin in one process.

    When it serves, exactly one line goes to stdout: `magnetar ready pulsar://HOST:PORT http://HOST:PORT`. Logs go to stderr.
    SIGINT and SIGTERM close cleanly; after a crash the next start recovers by itself.
    """
    config = load_config(
        config_file, os.environ, parse_assignments(assignments) | {k: v for k, v in flags.items() if v is not None}
    )
    logs.configure(config.log_level)
    ctx.exit(serve(config))


def parse_assignments(assignments: tuple[str, ...]) -> dict[str, object]:
    """Typed values by field name of `KEY=VALUE` words. Raises ConfigError."""
    table = table_of(StandaloneConfig)
    values: dict[str, object] = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator:
            raise ConfigError(f"--set {assignment}: expected KEY=VALUE")
        row = find(table, key.strip(), "--set")
        values[row.name] = parse(row, text, "--set")
    return values


def serve(config: StandaloneConfig) -> int:
    """Run the server until it is told to stop; its exit code."""
    from magnetar import standalone

    tune_interpreter()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        code: int = runner.run(standalone.run(config))
    return code


def tune_interpreter() -> None:
    """Shorter tails for publish latency (p99 behind a burst: 1.2 ms instead of 8.8 ms, one run each in turn).

    A thread that flushes or syncs hands the interpreter over after 0.5 ms instead of 5 ms. What start-up has built is kept out of
    garbage collection, which then looks at new objects only, and less often: the message path leaves hardly any cycles.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed (twice as fast on the message path), else the standard loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
