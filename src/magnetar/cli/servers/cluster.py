"""`magnetar cluster`: a cluster of real processes on this machine, to look at and to break."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit, emit_done, json_option, output_options, print_json
from magnetar.cli.servers.serve import keep_files_private
from magnetar.processes.cluster.cluster import Cluster, ProcessStatus
from magnetar.processes.cluster.growth import Wish
from magnetar.processes.cluster.plan import BROKER

SIGNALS = {each.name.removeprefix("SIG"): each for each in signal.Signals}
FOLLOW_POLL_S = 0.2


def default_directory() -> Path:
    """`$MAGNETAR_HOME/cluster`."""
    home = os.environ.get("MAGNETAR_HOME")
    return (Path(home) if home else Path.home() / ".magnetar") / "cluster"


dir_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=default_directory,
    help="Directory of the cluster.  [default: $MAGNETAR_HOME/cluster, or ~/.magnetar/cluster]",
)


@click.group("cluster")
def cluster_group() -> None:
    """Run a cluster of real processes on this machine: start, inspect, fault and stop it.

    Data, logs and port numbers are kept in one directory (--dir); a process that is started again uses the same ports.
    """
    keep_files_private()


@cluster_group.command("up")
@click.option("--bookies", type=click.IntRange(min=1), help="Number of bookies.  [default: 3]")
@click.option("--brokers", type=click.IntRange(min=0), help="Number of brokers.  [default: 1]")
@click.option(
    "--autorecovery",
    "autorecovery",
    is_flag=True,
    help="Run an auto-recovery process, which copies the entries of lost bookies.",
)
@click.option(
    "--metadata",
    metavar="KIND",
    help="Metadata store: embedded (magnetar's own server), zookeeper (one real ZooKeeper server, needs Java), or zookeeper:3 (an "
    "ensemble that survives the loss of a member).  [default: embedded]",
)
@click.option("--zookeeper/--embedded", default=None, hidden=True)  # the older words for --metadata
@click.option(
    "--ensemble-size", type=int, help="Bookies a ledger is spread over.  [default: 3, or as many as there are]"
)
@click.option("--write-quorum", type=int, help="Copies of each entry.  [default: 2]")
@click.option(
    "--ack-quorum", type=int, help="Copies on disk before an entry counts as stored.  [default: the write quorum]"
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of broker1's binary protocol.  [default: any free]"
)
@click.option(
    "--http-port", type=click.IntRange(0, 65535), default=0, help="Port of broker1's admin API.  [default: any free]"
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="[NAME.|ROLE.]KEY=VALUE",
    help="A setting for all processes that know it, or for some (ROLE.NAME=VALUE).",
)
@dir_option
@json_option
def up_command(
    directory: Path,
    as_json: bool,
    autorecovery: bool,
    ensemble_size: int | None,
    write_quorum: int | None,
    ack_quorum: int | None,
    port: int,
    http_port: int,
    metadata: str | None,
    zookeeper: bool | None,
    **asked: Any,
) -> None:
    """Start the processes that are not running, and add those that are missing. Returns when all are ready."""
    cluster = Cluster(directory, report)
    wish = Wish(
        **asked,
        zookeeper=zookeeper_servers(metadata, zookeeper),
        autorecovery=1 if autorecovery else None,
        ensemble=(ensemble_size, write_quorum, ack_quorum),
        broker_port=port,
        broker_http_port=http_port,
    )
    started = cluster.up(wish)
    if not started:
        report(f"the cluster in {cluster.directory} is up already")
    if as_json:
        print_json(as_record(cluster))
    else:
        brokers = cluster.plan.of_role(BROKER)
        if brokers:
            service_urls, web_urls = zip(*(process.addresses for process in brokers), strict=True)
            click.echo(f"export MAGNETAR_URL={several(service_urls)} MAGNETAR_ADMIN_URL={several(web_urls)}")


def zookeeper_servers(kind: str | None, zookeeper: bool | None) -> int | None:
    """Servers of the ZooKeeper ensemble that `--metadata KIND` asks for; 0: embedded; None: nothing was said.

    Raises CommandError for another word, or when the older flags say something else.
    """
    if kind is None:
        return None if zookeeper is None else int(zookeeper)
    if zookeeper is not None:
        raise CommandError("--metadata says which store it is; leave --zookeeper and --embedded out")
    name, colon, count = kind.partition(":")
    if name == "embedded" and not colon:
        return 0
    if name == "zookeeper" and (not colon or (count.isascii() and count.isdigit() and int(count))):
        return int(count or 1)
    raise CommandError(f"--metadata {kind!r} is not a metadata store; take embedded, zookeeper or zookeeper:3")


@cluster_group.command("status")
@dir_option
@output_options
def status_command(directory: Path, as_json: bool) -> None:
    """Show every process: name, role, addresses, process id and state (running, starting, paused, stopped, dead)."""
    cluster = Cluster(directory)
    if as_json:
        print_json(as_record(cluster))
    else:
        rows = [as_row(process) | {"addresses": " ".join(process.addresses)} for process in cluster.status()]
        emit(rows, as_json=False, title=str(cluster.directory))


@cluster_group.command("logs")
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Keep printing what is written from now on.")
@click.option("-n", "--lines", type=click.IntRange(0), help="Print only the last N lines.")
@dir_option
def logs_command(directory: Path, name: str, follow: bool, lines: int | None) -> None:
    """Print the log of a process, from all of its starts."""
    path = Cluster(directory).log_path(name)
    if not path.exists():
        raise CommandError(f"{name} has written nothing: it was never started")
    with path.open(encoding="utf-8", errors="replace") as log:
        text = log.read()
        if lines is not None:
            text = "".join(text.splitlines(keepends=True)[-lines:] if lines else [])
        click.echo(text, nl=False)
        while follow:
            text = log.read()
            if text:
                click.echo(text, nl=False)
            else:
                time.sleep(FOLLOW_POLL_S)


@cluster_group.command("kill")
@click.argument("name")
@click.option(
    "--signal",
    "signal_name",
    default="KILL",
    show_default=True,
    help="Signal to send instead of KILL: TERM, INT, HUP, ...",
)
@dir_option
@json_option
def kill_command(directory: Path, name: str, signal_name: str, as_json: bool) -> None:
    """Send kill -9, or another signal, to a process. It stays down until `magnetar cluster start`."""
    number = SIGNALS.get(signal_name.upper().removeprefix("SIG"))
    if number is None:
        raise click.UsageError(f"--signal {signal_name}: there is no such signal; try KILL, TERM, INT, STOP or CONT")
    pid = Cluster(directory).kill(name, number)
    emit_done(as_json, name=name, pid=pid, signal=number.name)


@cluster_group.command("pause")
@click.argument("name")
@dir_option
@json_option
def pause_command(directory: Path, name: str, as_json: bool) -> None:
    """Freeze a process (SIGSTOP): its connections stay open, but it answers nothing."""
    Cluster(directory).pause(name)
    emit_done(as_json, name=name, state="paused")


@cluster_group.command("resume")
@click.argument("name")
@dir_option
@json_option
def resume_command(directory: Path, name: str, as_json: bool) -> None:
    """Let a paused process continue."""
    Cluster(directory).resume(name)
    emit_done(as_json, name=name, state="running")


@cluster_group.command("start")
@click.argument("name")
@dir_option
@json_option
def start_command(directory: Path, name: str, as_json: bool) -> None:
    """Start a stopped process with its former ports and data. Returns when it is ready."""
    Cluster(directory, report).start(name)
    emit_done(as_json, name=name, state="running")


@cluster_group.command("down")
@dir_option
@json_option
def down_command(directory: Path, as_json: bool) -> None:
    """Stop all processes, brokers first. Data and ports are kept for the next `up`."""
    cluster = Cluster(directory, report)
    stopped = cluster.down()
    if not stopped:
        report(f"nothing of the cluster in {cluster.directory} was running")
    emit_done(as_json, stopped=stopped)


def several(urls: Sequence[str]) -> str:
    """`scheme://HOST:PORT,HOST:PORT`: clients go on to the next one when one does not answer."""
    return ",".join([urls[0], *(url.partition("://")[2] for url in urls[1:])])


def report(line: str) -> None:
    """Steps of a long command, for people."""
    click.echo(line, err=True)


def as_record(cluster: Cluster) -> dict[str, object]:
    plan, processes = cluster.plan, cluster.status()
    ensemble_size, write_quorum, ack_quorum = plan.ensemble
    return {
        "dir": str(cluster.directory),
        "metadata_url": plan.metadata_url,
        "ensemble_size": ensemble_size,
        "write_quorum": write_quorum,
        "ack_quorum": ack_quorum,
        "processes": [as_row(process) for process in processes],
    }


def as_row(process: ProcessStatus) -> dict[str, object]:
    return {
        "name": process.name,
        "role": process.role,
        "addresses": process.addresses,
        "pid": process.pid,
        "state": process.state,
    }
