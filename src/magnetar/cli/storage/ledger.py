"""`magnetar ledger`: what lies in the ledgers of a cluster, and whether every copy is there."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import click

from magnetar.bookkeeper.autorecovery.fragments import bookies_of
from magnetar.bookkeeper.autorecovery.verifier import CopiesReport, verify_entries
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.client.reader import LedgerReader
from magnetar.bookkeeper.errors import LedgerMetadataError, NoSuchLedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.cli.admin.http import connected
from magnetar.cli.errors import CommandError
from magnetar.cli.output import (
    emit,
    emit_done,
    emit_record,
    json_option,
    on_terminal,
    output_options,
    print_json,
    print_json_line,
    progress_bar,
)
from magnetar.cli.storage.bookie_access import ClusterAccess, opened_cluster
from magnetar.cli.storage.store_access import StoreSource, opened_for_reading, opened_store, store_options

READ_BYTES = 1024 * 1024
"""Asked for at a time."""

VERIFY_TIMEOUT_S = 10.0
"""A bookie that has not answered by then has not shown its copies."""

ENTRIES_NAMED_MAX = 20
"""Entry ids in one row for people; JSON has all."""

password_option = click.option("--password", default="", help="Password of ledgers whose metadata does not contain it.")


@click.group("ledger")
def ledger_group() -> None:
    """List, show, read and verify ledgers.

    Without --metadata, --data-dir or --dir a running server is asked for what `list`, `show` and `read` print (--admin-url). No command
    fences a ledger: open ones can still be written.
    """


# ---- Metadata


@ledger_group.command("list")
@click.option("--bookie", help="Show only ledgers that have entries on this bookie.")
@store_options
@output_options
def list_command(source: StoreSource, bookie: str | None, as_json: bool) -> None:
    """List all ledgers: state, size, quorums and owner."""
    emit(asyncio.run(_list(source, bookie)), as_json=as_json, title="ledgers")


async def _list(source: StoreSource, bookie: str | None) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    async with opened_for_reading(source) as store:
        manager = LedgerManager(store)
        ids = sorted(await manager.list_ids())
        with progress_bar("ledgers", len(ids)) as advance:
            for done, ledger_id in enumerate(ids, 1):
                row = await _row(manager, ledger_id, bookie)
                if row is not None:
                    rows.append(row)
                advance(done, len(ids))
    return rows


async def _row(manager: LedgerManager, ledger_id: int, bookie: str | None) -> dict[str, object] | None:
    try:
        metadata, _ = await manager.read(ledger_id)
    except NoSuchLedgerError:
        return None
    except LedgerMetadataError:
        return None if bookie else _damaged(ledger_id)
    if bookie is not None and bookie not in bookies_of(metadata):
        return None
    closed = metadata.state is LedgerState.CLOSED
    return {
        "ledgerId": ledger_id,
        "state": metadata.state.name,
        "entries": metadata.last_entry_id + 1 if closed else None,
        "length": metadata.length if closed else None,
        "ensemble": metadata.ensemble_size,
        "writeQuorum": metadata.write_quorum,
        "ackQuorum": metadata.ack_quorum,
        "segments": len(metadata.segments),
        "owner": owner_of(metadata),
    }


def _damaged(ledger_id: int) -> dict[str, object]:
    names = ("entries", "length", "ensemble", "writeQuorum", "ackQuorum", "segments", "owner")
    return {"ledgerId": ledger_id, "state": "DAMAGED", **dict.fromkeys(names)}


def owner_of(metadata: LedgerMetadata) -> str:
    """The topic (and subscription) that Pulsar noted, as far as it did."""
    custom = metadata.custom_metadata
    for name in ("pulsar/managed-ledger", "pulsar/compactedTopic", "pulsar/schemaId", "component"):
        if name in custom:
            cursor = custom.get("pulsar/cursor")
            return custom[name].decode(errors="replace") + (f" ({cursor.decode(errors='replace')})" if cursor else "")
    return ""


@ledger_group.command("show")
@click.argument("ledger_id", type=click.IntRange(0))
@store_options
@output_options
def show_command(source: StoreSource, ledger_id: int, as_json: bool) -> None:
    """Show the metadata of a ledger and its segments: which bookies hold which entries."""
    metadata = asyncio.run(_show(source, ledger_id))
    document = document_of(ledger_id, metadata)
    if as_json:
        print_json(document)
        return
    segments = document.pop("segments")
    document["customMetadata"] = ", ".join(f"{name}={value}" for name, value in document["customMetadata"].items())
    emit_record(document, as_json=False, title=f"ledger {ledger_id}")
    emit(
        [{"firstEntryId": each["firstEntryId"], "ensemble": " ".join(each["ensemble"])} for each in segments],
        as_json=False,
        title="segments",
    )


async def _show(source: StoreSource, ledger_id: int) -> LedgerMetadata:
    async with opened_for_reading(source) as store:
        metadata, _ = await LedgerManager(store).read(ledger_id)
        return metadata


def document_of(ledger_id: int, metadata: LedgerMetadata) -> dict[str, Any]:
    """Metadata as JSON, under BookKeeper's names. The password is not shown."""
    return {
        "ledgerId": ledger_id,
        "metadataFormatVersion": metadata.format_version,
        "state": metadata.state.name,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum,
        "ackQuorumSize": metadata.ack_quorum,
        "lastEntryId": metadata.last_entry_id,
        "length": metadata.length,
        "digestType": metadata.digest_type.name,
        "hasPassword": metadata.password is not None,
        "ctime": metadata.ctime_ms,
        "customMetadata": {
            name: value.decode(errors="replace") for name, value in sorted(metadata.custom_metadata.items())
        },
        "segments": [
            {"firstEntryId": segment.first_entry_id, "ensemble": list(segment.ensemble)}
            for segment in metadata.segments
        ],
    }


@ledger_group.command("adopt")
@click.argument("ledger_id", type=click.IntRange(0))
@click.option(
    "--from",
    "earlier",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="SQLite file of a tree that contains the ledger: the one that the restore has set aside.",
)
@store_options
@json_option
def adopt_command(source: StoreSource, ledger_id: int, earlier: Path, as_json: bool) -> None:
    """Restore the metadata of a ledger that a metadata restore has lost, so that it can be read and verified again.

    No topic contains it; `magnetar ledger read` shows its entries.
    """
    asyncio.run(_adopt(source, ledger_id, earlier))
    emit_done(as_json, ledgerId=ledger_id)


async def _adopt(source: StoreSource, ledger_id: int, earlier: Path) -> None:
    async with opened_for_reading(StoreSource(f"sqlite:{earlier}", None, None)) as old:
        metadata, _ = await LedgerManager(old).read(ledger_id)
    async with opened_store(source) as store:
        manager = LedgerManager(store)
        if not any(first <= ledger_id <= last for first, last in await manager.restored_ranges()):
            raise CommandError(
                f"ledger {ledger_id} was not lost by a restore; see which may have been: magnetar metadata restored"
            )
        await manager.adopt(ledger_id, metadata)


# ---- Entries


@ledger_group.command("read")
@click.argument("ledger_id", type=click.IntRange(0))
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="First entry.")
@click.option("--last", type=click.IntRange(0), help="Last entry. [default: the last confirmed one]")
@click.option("--raw", is_flag=True, help="Print only the bytes of the payloads, one after the other.")
@password_option
@store_options
@output_options
def read_command(
    source: StoreSource, ledger_id: int, first: int, last: int | None, raw: bool, password: str, as_json: bool
) -> None:
    """Print entries of a ledger. Of an open ledger only confirmed entries are printed."""
    if source.online:
        _read_online(source, ledger_id, first, last, raw, as_json)
        return
    asyncio.run(_read(source, ledger_id, first, last, raw, password.encode(), as_json))


async def _read(
    source: StoreSource, ledger_id: int, first: int, last: int | None, raw: bool, password: bytes, as_json: bool
) -> None:
    async with opened_cluster(source) as cluster:
        metadata = await cluster.client.read_metadata(ledger_id)
        key = password if metadata.password is None else metadata.password
        reader = await cluster.client.open_ledger(ledger_id, recover=False, password=key)
        end = reader.last_add_confirmed if last is None else min(last, reader.last_add_confirmed)
        entry_id = first
        while entry_id <= end:
            for payload in await read_some(reader, entry_id, end):
                print_entry(entry_id, payload, raw, as_json)
                entry_id += 1


def _read_online(source: StoreSource, ledger_id: int, first: int, last: int | None, raw: bool, as_json: bool) -> None:
    """A running server reads them."""
    with connected(source.admin_url) as admin:
        while True:
            found = admin.ledgers.entries(ledger_id, first)
            for entry in found.entries:
                if last is not None and entry.entry_id > last:
                    return
                print_entry(entry.entry_id, base64.b64decode(entry.payload), raw, as_json)
            if not found.entries or found.entries[-1].entry_id >= found.last_confirmed:
                return
            first = found.entries[-1].entry_id + 1


async def read_some(reader: LedgerReader, first: int, last: int) -> list[bytes]:
    """At least one payload from `first` on."""
    answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None, payloads: list[bytes]) -> None:
        if not answer.done():
            answer.set_result(payloads) if error is None else answer.set_exception(error)

    reader.read(first, last, READ_BYTES, done)
    return await answer


def print_entry(entry_id: int, payload: bytes, raw: bool, as_json: bool) -> None:
    """One entry: its bytes, a JSON line, or a line for people."""
    if raw:
        sys.stdout.buffer.write(payload)
    elif as_json:
        print_json_line({"entryId": entry_id, "size": len(payload), "payload": base64.b64encode(payload).decode()})
    else:
        shown = json.dumps(payload[:80].decode("latin-1"))[1:-1]
        click.echo(f"{entry_id}\t{len(payload)}\t{shown}{'...' if len(payload) > 80 else ''}")


@ledger_group.command("verify")
@click.argument("ledger_id", type=click.IntRange(0), required=False)
@click.option("--all", "every", is_flag=True, help="Verify all ledgers of the cluster.")
@password_option
@store_options
@output_options
def verify_command(source: StoreSource, ledger_id: int | None, every: bool, password: str, as_json: bool) -> int:
    """Read every entry from each bookie that has to hold it and check its digest. The exit code is 1 if any copy is missing.

    Of an open ledger only confirmed entries are checked.
    """
    if (ledger_id is None) != every:
        raise click.UsageError("give a ledger's id, or --all")
    reports = asyncio.run(_verify(source, ledger_id, password.encode()))
    if as_json:
        print_json([_report(each, report) for each, report in reports.items()])
    else:
        _print_reports(reports)
    return 0 if all(report.sound for report in reports.values()) else 1


async def _verify(source: StoreSource, ledger_id: int | None, password: bytes) -> dict[int, CopiesReport]:
    found: dict[int, CopiesReport] = {}
    async with opened_cluster(source) as cluster:
        ids = sorted(await cluster.manager.list_ids()) if ledger_id is None else [ledger_id]
        for each in ids:
            try:
                found[each] = await _verify_one(cluster, each, password)
            except NoSuchLedgerError:
                if ledger_id is not None:
                    raise
    return found


async def _verify_one(cluster: ClusterAccess, ledger_id: int, password: bytes) -> CopiesReport:
    metadata = await cluster.client.read_metadata(ledger_id)
    last = metadata.last_entry_id
    if metadata.state is not LedgerState.CLOSED:
        key = password if metadata.password is None else metadata.password
        last = (await cluster.client.open_ledger(ledger_id, recover=False, password=key)).last_add_confirmed
    report = CopiesReport()
    with progress_bar(f"ledger {ledger_id}", last + 1) as advance:
        copies = verify_entries(
            cluster.bookies,
            ledger_id,
            metadata,
            last,
            cluster.available,
            timeout_s=VERIFY_TIMEOUT_S,
            default_password=password,
        )
        async for entry_id, health in copies:
            report.add(entry_id, health)
            advance(entry_id + 1, last + 1)
    return report


def _report(ledger_id: int, report: CopiesReport) -> dict[str, object]:
    return {
        "ledgerId": ledger_id,
        "entries": report.entries,
        "copies": report.copies,
        "good": report.good,
        "unreadable": report.unreadable,
        "bookies": {
            name: {health.value: entries for health, entries in problems.items()}
            for name, problems in sorted(report.by_bookie.items())
        },
    }


def _print_reports(reports: dict[int, CopiesReport]) -> None:
    rows: list[dict[str, object]] = []
    for ledger_id, report in reports.items():
        for name, problems in sorted(report.by_bookie.items()):
            for health, entries in problems.items():
                rows.append(
                    {
                        "ledgerId": ledger_id,
                        "bookie": name,
                        "problem": health.value,
                        "copies": len(entries),
                        "entries": " ".join(map(str, entries[:ENTRIES_NAMED_MAX]))
                        + (" ..." if len(entries) > ENTRIES_NAMED_MAX else ""),
                    }
                )
    if rows:
        emit(rows, as_json=False, title="copies that are not there")
    copies, good = (sum(getattr(each, name) for each in reports.values()) for name in ("copies", "good"))
    lost = sum(len(each.unreadable) for each in reports.values())
    text = f"{len(reports)} ledgers, {good} of {copies} copies good" + (f", {lost} entries without any" if lost else "")
    click.echo(text, err=not on_terminal())
