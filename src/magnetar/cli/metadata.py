"""`magnetar metadata`: look into any metadata store, as ZooKeeper's shell would, but with the values decoded."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

import click

from magnetar.cli.errors import CommandError
from magnetar.cli.metadata_values import meaning_of
from magnetar.cli.output import json_option, print_json
from magnetar.cli.store_access import StoreSource, opened_for_reading, store_options
from magnetar.metadata.store import InspectableStore, Stat, check_path

T = TypeVar("T")

raw_option = click.option("--raw", is_flag=True, help="Print the stored bytes and nothing else.")


@click.group("metadata")
def metadata_group() -> None:
    """List nodes of the metadata tree and show what is in them.

    Paths are those of Pulsar and BookKeeper, e.g. /ledgers/00/0000/L0016 or /managed-ledgers/public/default/persistent.
    """


@metadata_group.command("ls")
@click.argument("path", default="/")
@click.option("--raw", is_flag=True, help="One name a line.")
@store_options
@json_option
def ls_command(source: StoreSource, path: str, raw: bool, as_json: bool) -> None:
    """Names of the children of PATH."""

    async def work(store: InspectableStore) -> list[str]:
        found = await store.children(path)
        if not found and not await store.exists(path):
            raise _missing(path)
        return found

    names = _run(work, path, source)
    if as_json:
        print_json(names)
    elif raw:
        for name in names:
            click.echo(name)
    else:
        click.echo(f"[{', '.join(names)}]")


@metadata_group.command("get")
@click.argument("path")
@raw_option
@store_options
@json_option
def get_command(source: StoreSource, path: str, raw: bool, as_json: bool) -> None:
    """What the node at PATH holds, decoded."""
    node = _run(lambda store: store.get(path), path, source)
    if node is None:
        raise _missing(path)
    if raw:
        sys.stdout.buffer.write(node.value)
        sys.stdout.buffer.flush()
        return
    meaning = meaning_of(path, node.value)
    if as_json:
        print_json({"path": path, "version": node.version, "kind": meaning.kind, "value": meaning.value})
    else:
        click.echo(meaning.text)


@metadata_group.command("stat")
@click.argument("path")
@store_options
@json_option
def stat_command(source: StoreSource, path: str, as_json: bool) -> None:
    """Versions, times, owner and sizes of the node at PATH, with ZooKeeper's names."""
    stat = _run(lambda store: store.stat(path), path, source)
    if stat is None:
        raise _missing(path)
    if as_json:
        print_json({"path": path, **stat_record(stat)})
        return
    for name, value in stat_record(stat).items():
        text = hex(value) if name in ("cZxid", "mZxid", "pZxid", "ephemeralOwner") else str(value)
        click.echo(f"{name} = {_time(value) if name in ('ctime', 'mtime') else text}")


def stat_record(stat: Stat) -> dict[str, int]:
    """By ZooKeeper's names, in the order in which its shell prints them. Times in ms since the epoch."""
    return {
        "cZxid": stat.czxid,
        "ctime": stat.ctime_ms,
        "mZxid": stat.mzxid,
        "mtime": stat.mtime_ms,
        "pZxid": stat.pzxid,
        "cversion": stat.cversion,
        "dataVersion": stat.version,
        "aclVersion": stat.aversion,
        "ephemeralOwner": stat.owner,
        "dataLength": stat.data_length,
        "numChildren": stat.children,
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def _missing(path: str) -> CommandError:
    parent = path.rstrip("/").rpartition("/")[0] or "/"
    return CommandError(f"{path} does not exist; see what there is: magnetar metadata ls {parent}")


def _run(work: Callable[[InspectableStore], Awaitable[T]], path: str, source: StoreSource) -> T:
    check_path(path)

    async def run() -> T:
        async with opened_for_reading(source) as store:
            return await work(store)

    return asyncio.run(run())
