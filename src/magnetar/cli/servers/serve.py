"""The commands that serve: flags to configuration, then the server on the fastest event loop there is."""

from __future__ import annotations

import asyncio
import gc
import logging
import mmap
import os
import resource
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from magnetar.base import logs
from magnetar.base.errors import ConfigError, OpenDoorError, StartupError
from magnetar.base.listen_settings import LOG_LEVELS, ListenSettings
from magnetar.base.settings import KeyVerdict, Reading, find, name_in, parse, read_settings, table_of
from magnetar.cli.lazy import uncollected
from magnetar.cli.servers.settings import config_file_option
from magnetar.processes.configurations import (
    CONFIGURATIONS,
    AutorecoveryConfig,
    BookieProcessConfig,
    BrokerProcessConfig,
    MetadataServerConfig,
    StandaloneConfig,
)
from magnetar.processes.pulsar_keys import PULSAR_KEYS

logger = logging.getLogger(__name__)

BROKERS_MAX = 64
"""Of `magnetar standalone --brokers`."""

EVERYWHERE = "0.0.0.0"

NAMED_KEYS_MAX = 20
"""Of the keys without effect that one warning names."""

ADDRESS_SPACE_BYTES = 640 * 1024 * 1024
"""What a server must be able to take of the address space when it starts: threads reserve far more than they use."""

SWITCH_INTERVAL_S = 0.0005
GC_THRESHOLDS = (2_000, 5, 2_000)
"""The middle generation is collected after 10,000 new objects: with 1,000 topics a pause of 3 to 11 ms of CPU; after 40,000 it was 9 to 16.
The oldest one is looked at as rarely as then, and Python leaves it alone until it has grown by a quarter."""

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=ListenSettings)


def server_options(function: F) -> F:
    """The options that every server has."""
    for option in (
        click.option(
            "--log-level",
            type=click.Choice(LOG_LEVELS),
            help="Least severe level that is logged to stderr.  [default: info]",
        ),
        click.option(
            "--set",
            "assignments",
            multiple=True,
            metavar="KEY=VALUE",
            help="Set any other setting; see `magnetar config list`.",
        ),
        config_file_option,
        click.option(
            "--insecure-listen",
            is_flag=True,
            default=None,
            help="Accept connections from other machines although authentication is off.",
        ),
        click.option(
            "--advertised-address", help="Host name that clients are told to connect to.  [default: the bind address]"
        ),
        click.option("--bind-address", help="Address to listen on.  [default: 127.0.0.1]"),
    ):
        function = option(function)
    return function


@click.command("standalone")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Directory for all data.  [default: magnetar-data]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port of the binary protocol; 0 picks a free one.  [default: 6650]"
)
@click.option(
    "--http-port", type=click.IntRange(0, 65535), help="Port of the admin API; 0 picks a free one.  [default: 8080]"
)
@click.option("--cluster-name", help="Name of this cluster, by which other clusters know it.  [default: standalone]")
@click.option(
    "--brokers",
    type=click.IntRange(1, BROKERS_MAX),
    help="Number of broker processes, to use several cores; further ones take free ports.  [default: all in one process]",
)
@server_options
@click.pass_context
def standalone_command(
    ctx: click.Context,
    /,
    config_file: Path | None,
    assignments: tuple[str, ...],
    brokers: int | None,
    **flags: object,
) -> None:
    """Run a whole server: broker, bookie, metadata store and admin API in one process (several with --brokers).

    When it is ready, it writes exactly one line to stdout: `magnetar ready pulsar://HOST:PORT http://HOST:PORT`. Logs go to stderr.
    SIGINT and SIGTERM stop it cleanly; after a crash the next start recovers by itself.
    """
    config = configuration(StandaloneConfig, config_file, assignments, flags)
    if brokers is not None:
        from magnetar.processes import standalone_brokers

        ctx.exit(serve(standalone_brokers.run(config, brokers)))
    with uncollected():
        from magnetar import standalone

    ctx.exit(serve(standalone.run(config)))


@click.command("bookie")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Directory for journal and ledgers.  [default: magnetar-bookie]"
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port of BookKeeper's protocol; 0 picks a free one.  [default: 3181]"
)
@click.option(
    "--http-port",
    type=click.IntRange(-1, 65535),
    help="Port for metrics, health and info; -1 disables it.  [default: 8000]",
)
@click.option("--metadata-url", "metadata_service_uri", help="Metadata store: zk:HOST:PORT[,HOST:PORT...].")
@click.option(
    "--bookie-id", help="Permanent name of this bookie in ledger metadata.  [default: the advertised HOST:PORT]"
)
@server_options
@click.pass_context
def bookie_command(
    ctx: click.Context, /, config_file: Path | None, assignments: tuple[str, ...], **flags: object
) -> None:
    """Run one bookie of a cluster: it serves BookKeeper's protocol and stores entries on this machine's disks.

    When it is ready, it writes exactly one line to stdout: `magnetar ready bookie://HOST:PORT http://HOST:PORT`. Logs go to stderr.
    SIGINT and SIGTERM stop it cleanly; after a crash the next start recovers by itself. A bookie whose disk is full keeps serving reads.
    """
    config = configuration(BookieProcessConfig, config_file, assignments, flags)
    from magnetar.processes import bookie

    ctx.exit(serve(bookie.run(config)))


@click.command("broker")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port of the binary protocol; 0 picks a free one.  [default: 6650]"
)
@click.option(
    "--http-port", type=click.IntRange(0, 65535), help="Port of the admin API; 0 picks a free one.  [default: 8080]"
)
@click.option("--metadata-url", "metadata_store_url", help="Metadata store: zk:HOST:PORT[,HOST:PORT...].")
@server_options
@click.pass_context
def broker_command(
    ctx: click.Context, /, config_file: Path | None, assignments: tuple[str, ...], **flags: object
) -> None:
    """Run a broker and its admin API; it stores entries on the bookies of the cluster.

    When it is ready, it writes exactly one line to stdout: `magnetar ready pulsar://HOST:PORT http://HOST:PORT`. Logs go to stderr.
    SIGINT and SIGTERM stop it cleanly; on SIGTERM it first hands its bundles to other brokers.
    """
    config = configuration(BrokerProcessConfig, config_file, assignments, flags)
    from magnetar.processes import broker

    ctx.exit(serve(broker.run(config)))


@click.command("autorecovery")
@click.option(
    "--http-port", type=click.IntRange(-1, 65535), help="Port for metrics and health; -1 disables it.  [default: 8001]"
)
@click.option("--metadata-url", "metadata_service_uri", help="Metadata store: zk:HOST:PORT[,HOST:PORT...].")
@server_options
@click.pass_context
def autorecovery_command(
    ctx: click.Context, /, config_file: Path | None, assignments: tuple[str, ...], **flags: object
) -> None:
    """Run auto-recovery: it notices lost bookies and copies their entries to others.

    When it is ready, it writes exactly one line to stdout: `magnetar ready http://HOST:PORT`. Logs go to stderr. A cluster may run several.
    """
    config = configuration(AutorecoveryConfig, config_file, assignments, flags)
    from magnetar.processes import autorecovery

    ctx.exit(serve(autorecovery.run(config)))


@click.command("metadata-server")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Directory of the data.  [default: magnetar-metadata]"
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port of ZooKeeper's protocol; 0 picks a free one.  [default: 2181]"
)
@server_options
@click.pass_context
def metadata_server_command(
    ctx: click.Context, /, config_file: Path | None, assignments: tuple[str, ...], **flags: object
) -> None:
    """Run a metadata server that speaks ZooKeeper's protocol without Java. It is one process and is not replicated.

    When it is ready, it writes exactly one line to stdout: `magnetar ready zk:HOST:PORT`. Logs go to stderr.
    """
    config = configuration(MetadataServerConfig, config_file, assignments, flags)
    from magnetar.processes import metadata_server

    ctx.exit(serve(metadata_server.run(config)))


def configuration(kind: type[C], config_file: Path | None, assignments: tuple[str, ...], flags: dict[str, object]) -> C:
    """Flags over environment over file over defaults; the log level is applied. Raises ConfigError."""
    given = parse_assignments(assignments, kind) | {key: value for key, value in flags.items() if value is not None}
    reading = read_settings(kind, config_file, os.environ, given, CONFIGURATIONS, PULSAR_KEYS)
    config, warnings = composed(kind, reading, config_file)
    logs.configure(config.log_level)
    for line in [*warnings, *without_effect_warning(reading.without_effect, config_file)]:
        logger.warning("%s", line)
    return config


def composed(kind: type[C], reading: Reading, config_file: Path | None) -> tuple[C, list[str]]:
    """The configuration, and what the operator must hear of it. Raises ConfigError.

    Pulsar's own files say bindAddress=0.0.0.0, and ask nobody: with such a file a server serves this machine alone.
    """
    values: dict[str, Any] = {name: value for name, (value, _) in reading.values.items()}
    try:
        return kind(**values), []
    except OpenDoorError:
        address, source = reading.values["bind_address"]
        if address != EVERYWHERE or not source.startswith(f"{config_file}:"):
            raise
    warning = (
        f"{source}: bindAddress={EVERYWHERE} would let other machines in and nothing asks who they are, so only this machine is "
        "served; switch on authenticationEnabled, or pass --insecure-listen"
    )
    return kind(**values | {"bind_address": "127.0.0.1"}), [warning]


def without_effect_warning(keys: Sequence[KeyVerdict], config_file: Path | None) -> list[str]:
    """One line about all of them. Those that say something else than Pulsar does by itself are named: somebody meant something by them."""
    if not keys:
        return []
    meant = [verdict.key for verdict in keys if verdict.changed]
    shown = ", ".join(meant[:NAMED_KEYS_MAX]) + (
        f", {len(meant) - NAMED_KEYS_MAX} more" * (len(meant) > NAMED_KEYS_MAX)
    )
    changed = f"; not Pulsar's default have {shown}" if meant else ""
    say = f"magnetar config check {config_file}" if config_file else "magnetar config explain KEY"
    return [f"{config_file or 'environment'}: {len(keys)} keys have no effect here ({say} lists why){changed}"]


def parse_assignments(assignments: tuple[str, ...], kind: type = StandaloneConfig) -> dict[str, object]:
    """Typed values by field name of `KEY=VALUE` words. Raises ConfigError."""
    table = table_of(kind)
    values: dict[str, object] = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator:
            raise ConfigError(
                f"--set {name_in(assignment, table.values())}: expected KEY=VALUE; what was given has no '=' and is not repeated"
            )
        row = find(table, key.strip(), "--set", PULSAR_KEYS)
        values[row.name] = parse(row, text, "--set")
    return values


def serve(work: Coroutine[Any, Any, int]) -> int:
    """Run a server until it is told to stop; its exit code. Raises StartupError when the memory limit is too low."""
    keep_files_private()
    try:
        check_address_space()
    except StartupError:
        work.close()
        raise
    raise_open_files_limit()
    tune_interpreter()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        code: int = runner.run(work)
    return code


def keep_files_private() -> None:
    """Whatever this process and its children write from now on (data, logs of clusters, state of pipelines) is for its user alone, whatever
    the shell's umask is."""
    os.umask(0o077)


def check_address_space() -> None:
    """Raises StartupError when a limit (ulimit -v, prlimit --as, a strict overcommit) leaves too little: the storage engine would abort
    where it cannot start a thread, without a word."""
    try:
        mmap.mmap(-1, ADDRESS_SPACE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
    except OSError:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        said = "" if limit == resource.RLIM_INFINITY else f" (the limit is {limit // 2**20} MiB)"
        raise StartupError(
            f"out of memory: a server needs {ADDRESS_SPACE_BYTES // 2**20} MiB of address space to start and cannot have "
            f"them{said}; raise the limit (ulimit -v, prlimit --as), or limit resident memory instead (cgroups, MemoryMax)"
        ) from None


def raise_open_files_limit() -> None:
    """As many open files as the system lets this process have; shells often give 1,024, and every client takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
