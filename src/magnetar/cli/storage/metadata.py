"""`magnetar metadata`: look into any metadata store, as ZooKeeper's shell would, but with the values decoded; back it up and restore it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import click

from magnetar import __version__
from magnetar.base.clock import SystemClock
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.cli.errors import CommandError
from magnetar.cli.output import (
    echo_text,
    emit,
    emit_done,
    emit_record,
    json_option,
    output_options,
    print_json,
    progress_bar,
)
from magnetar.cli.storage.metadata_values import meaning_of
from magnetar.cli.storage.store_access import StoreSource, opened_for_reading, opened_store, store_options
from magnetar.metadata.backup import METADATA_BACKUP, BackupSummary, back_up, restore
from magnetar.metadata.commit_mark import mark_path
from magnetar.metadata.sqlite_file import FILE_NAME, salvage
from magnetar.metadata.store import MetadataStore, Stat, check_path
from magnetar.processes.data_backup import DataSummary, verify_data

T = TypeVar("T")

MISSING_NAMED_MAX = 20
"""Entries that could not be read, as far as one line names them; JSON has all."""

force_option = click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
raw_option = click.option("--raw", is_flag=True, help="Print only the stored bytes.")


@click.group("metadata")
def metadata_group() -> None:
    """List and show nodes of the metadata tree; back it up, verify and restore it.

    Without --metadata, --data-dir or --dir a running server is asked for what only looks at the tree (--admin-url).
    Paths are those of Pulsar and BookKeeper, e.g. /ledgers/00/0000/L0016 or /managed-ledgers/public/default/persistent.
    """


@metadata_group.command("ls")
@click.argument("path", default="/")
@click.option("--raw", is_flag=True, help="Print one name per line.")
@store_options
@json_option
def ls_command(source: StoreSource, path: str, raw: bool, as_json: bool) -> None:
    """List the children of PATH."""

    async def work(store: MetadataStore) -> list[str]:
        found = await store.children(path)
        if not found and not await store.exists(path):
            raise _missing(path)
        return found

    names = _run(work, path, source)
    if as_json:
        print_json(names)
    elif raw:
        for name in names:
            echo_text(name)
    else:
        echo_text(f"[{', '.join(names)}]")


@metadata_group.command("get")
@click.argument("path")
@raw_option
@store_options
@json_option
def get_command(source: StoreSource, path: str, raw: bool, as_json: bool) -> None:
    """Show the decoded content of the node at PATH."""
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
        echo_text(meaning.text)


@metadata_group.command("stat")
@click.argument("path")
@store_options
@json_option
def stat_command(source: StoreSource, path: str, as_json: bool) -> None:
    """Show versions, times, owner and sizes of the node at PATH, with ZooKeeper's names."""
    stat = _run(lambda store: store.stat(path), path, source)
    if stat is None:
        raise _missing(path)
    if as_json:
        print_json({"path": path, **stat_record(stat)})
        return
    for name, value in stat_record(stat).items():
        text = hex(value) if name in ("cZxid", "mZxid", "pZxid", "ephemeralOwner") else str(value)
        click.echo(f"{name} = {_time(value) if name in ('ctime', 'mtime') else text}")


# ---- Damage


@metadata_group.command("salvage")
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@json_option
def salvage_command(directory: Path, as_json: bool) -> None:
    """Rescue what is left of damaged metadata in DIRECTORY, after a server refused to start on it.

    DIRECTORY is the data directory of a standalone server or of a metadata server, which must not run. Restore a copy of the directory
    instead if there is one: topics and messages whose metadata is missing are gone afterwards, and bookies delete their entries.
    The files are copied first.
    """
    file = directory / FILE_NAME
    if not any(path.exists() for path in (file, mark_path(file))):
        raise CommandError(f"there is no {FILE_NAME} in {directory}; name the data directory of a server that has run")
    done = salvage(file)
    if as_json:
        print_json(
            {
                "copy": str(done.copy),
                "zxid": done.zxid,
                "acknowledged_zxid": done.acknowledged,
                "damaged_nodes": list(done.damaged),
            }
        )
        return
    click.echo(f"the files as they were: {done.copy}")
    if done.acknowledged > done.zxid:
        click.echo(f"lost: transactions {done.zxid + 1:#x} to {done.acknowledged:#x}")
    elif not done.acknowledged:
        click.echo(f"the last transaction is {done.zxid:#x}; whether more were acknowledged is unknown")
    for path in done.damaged:
        click.echo(f"damaged, kept as it is: {path}")


@metadata_group.command("raise-ledger-ids")
@click.argument("above", type=click.IntRange(0))
@store_options
@json_option
def raise_ledger_ids_command(source: StoreSource, above: int, as_json: bool) -> None:
    """Make new ledgers get ids higher than ABOVE.

    For a store that was restored from an older copy: bookies that hold newer ledgers do not start beside it. Their entries are deleted
    then, since the store does not know them. A standalone server must not run meanwhile.
    """

    async def run() -> None:
        async with opened_store(source) as store:
            await LedgerManager(store).raise_ids(above)

    asyncio.run(run())
    emit_done(as_json, above=above)


# ---- Backup


@metadata_group.command("backup")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@force_option
@store_options
@output_options
def backup_command(source: StoreSource, file: Path, force: bool, as_json: bool) -> None:
    """Copy the tree to FILE as of one transaction; the server may be running."""
    with progress_bar("nodes") as advance:
        summary = back_up(source.sqlite_file(), file, __version__, force=force, progress=advance)
    emit_record(summary_record(file, summary), as_json=as_json, title="backup")


@metadata_group.command("verify")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@output_options
def verify_command(file: Path, as_json: bool) -> None:
    """Check every byte of the backup FILE, of either kind. The exit code is 1 if anything is damaged."""
    with progress_bar("bytes") as advance:
        summary = verify_data(file, progress=advance)
    alone = summary.tree.kind == METADATA_BACKUP
    record = summary_record(file, summary.tree) if alone else data_record(file, summary, as_json=as_json)
    emit_record(record, as_json=as_json, title="backup")


@metadata_group.command("restore")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--replace", is_flag=True, help="Set aside an existing tree of the same cluster.")
@store_options
@output_options
def restore_command(source: StoreSource, file: Path, replace: bool, as_json: bool) -> None:
    """Restore the tree in FILE into the directory of a stopped server.

    Into an empty directory, or with --replace over an older or newer tree of the same cluster, which is kept beside it. What was created
    after the backup is not in the tree; docs/how-to/back-up-and-restore.md says what to do about it.
    """
    target = source.sqlite_file()
    now_ms = SystemClock().now_ms()
    with progress_bar("bytes") as advance:
        summary, next_id, kept = restore(file, target, now_ms=now_ms, replace=replace, progress=advance)
    record = {**summary_record(file, summary), "restoredTo": str(target), "nextLedgerId": next_id}
    emit_record({**record, "setAside": None if kept is None else str(kept)}, as_json=as_json, title="restored")


@metadata_group.command("restored")
@click.option("--release", is_flag=True, help="Allow bookies to delete these ledgers.")
@store_options
@output_options
def restored_command(source: StoreSource, release: bool, as_json: bool) -> None:
    """List the ids of ledgers that the tree may have lost by a restore. Bookies keep these ledgers until --release is given."""

    async def run() -> list[tuple[int, int]]:
        async with opened_store(source) if release else opened_for_reading(source) as store:
            manager = LedgerManager(store)
            ranges = await manager.restored_ranges()
            if release:
                await manager.release_restored()
            return ranges

    rows = [{"firstLedgerId": first, "lastLedgerId": last} for first, last in asyncio.run(run())]
    emit(rows, as_json=as_json, title="released" if release else "ledgers that are kept")


def summary_record(file: Path, summary: BackupSummary) -> dict[str, object]:
    """As it is printed."""
    return {
        "file": str(file),
        "kind": summary.kind,
        "instanceId": summary.instance_id,
        "transactionId": summary.zxid,
        "time": summary.time,
        "nodes": summary.nodes,
        "size": summary.size_bytes,
        "sha256": summary.sha256,
    }


def data_record(file: Path, summary: DataSummary, *, as_json: bool) -> dict[str, object]:
    """As it is printed."""
    missing: object = [{"ledgerId": ledger, "entryId": entry} for ledger, entry in summary.missing]
    if not as_json:
        named = " ".join(f"{ledger}:{entry}" for ledger, entry in summary.missing[:MISSING_NAMED_MAX])
        missing = f"{len(summary.missing)} {named}".strip()
    return {
        **summary_record(file, summary.tree),
        "ledgers": summary.ledgers,
        "entries": summary.entries,
        "unreadableEntries": missing,
    }


# ---- Parts


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


def _run(work: Callable[[MetadataStore], Awaitable[T]], path: str, source: StoreSource) -> T:
    check_path(path)

    async def run() -> T:
        async with opened_for_reading(source) as store:
            return await work(store)

    return asyncio.run(run())
