"""`magnetar bookies`: which there are, where they stand, what auto-recovery has to do, and how one is taken out."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import click

from magnetar.base.clock import SystemClock
from magnetar.base.network import AsyncioNetwork
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.autorecovery.auditor_election import elected_auditor
from magnetar.bookkeeper.autorecovery.decommission import Decommission, Progress
from magnetar.bookkeeper.autorecovery.underreplication import UnderreplicationManager
from magnetar.bookkeeper.bookie_watcher import BookieWatcher
from magnetar.bookkeeper.client.channel.channel import RemoteBookie
from magnetar.bookkeeper.client.channel.options import ChannelOptions
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.rack_mapping import DEFAULT_GROUP, delete_rack, locations_of, read_mapping, set_rack
from magnetar.bookkeeper.service_info import BookieServiceInfo
from magnetar.cli.admin.common import common, show_document, show_names, shown
from magnetar.cli.admin.http import connected
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit, emit_done, emit_record, json_option, output_options, progress_bar
from magnetar.cli.storage.bookie_access import access_options, opened_cluster
from magnetar.cli.storage.store_access import StoreSource, opened_for_reading, opened_store, store_options
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore
from magnetar.processes.data_backup import BOOKIE_ID

T = TypeVar("T")


@click.group("bookies")
def bookies_group() -> None:
    """List, place, recover and decommission the bookies of a cluster."""


def run_with_store(source: StoreSource, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """Open the store, do the work, close the store."""

    async def run() -> T:
        async with opened_store(source) as store:
            return await work(store)

    return asyncio.run(run())


def look(source: StoreSource, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """The same for work that changes nothing: a running server can be asked."""

    async def run() -> T:
        async with opened_for_reading(source) if source.online else opened_store(source) as store:
            return await work(store)

    return asyncio.run(run())


# ---- Which there are


@bookies_group.command("list")
@store_options
@output_options
def list_command(source: StoreSource, as_json: bool) -> None:
    """List every bookie: state (writable, read-only, lost), rack, address and free space.

    A lost bookie has a cookie but is not registered.
    """
    rows = look(source, partial(_list, access_options(source), source.online))
    emit(rows, as_json=as_json, title="bookies")


async def _list(options: ChannelOptions, online: bool, store: MetadataStore) -> list[dict[str, object]]:
    """`online`: the bookie inside of a standalone server, which does not register itself, serves: it has just read this."""
    locations = locations_of(await read_mapping(store))
    async with BookieWatcher(store) as watcher:
        known, writable = watcher.known, watcher.writable
    serving = {*writable, BOOKIE_ID} if online else writable
    cookies = await store.children(paths.COOKIES_PATH)
    free = await free_spaces(known, options)
    rows: list[dict[str, object]] = []
    for name in sorted({*cookies, *known}):
        endpoint = known[name].rpc if name in known else None
        rows.append(
            {
                "bookie": name,
                "state": "writable" if name in serving else "read-only" if name in known else "lost",
                "rack": locations.get(name, ""),
                "address": f"{endpoint.host}:{endpoint.port}" if endpoint is not None else "",
                "freeBytes": free.get(name),
            }
        )
    return rows


# ---- Where they stand


@bookies_group.group("racks")
def racks_group() -> None:
    """Show and change the racks of bookies, which rack-aware placement follows."""


@racks_group.command("list")
@store_options
@output_options
def racks_list_command(source: StoreSource, as_json: bool) -> None:
    """List all bookies with a known rack."""
    mapping = look(source, read_mapping)
    rows = [
        {"bookie": name, "group": group, "rack": document.get("rack"), "hostname": document.get("hostname")}
        for group, members in sorted(mapping.items())
        for name, document in sorted(members.items())
    ]
    emit(rows, as_json=as_json, title="racks")


@racks_group.command("get")
@click.argument("bookie")
@store_options
@output_options
def racks_get_command(source: StoreSource, bookie: str, as_json: bool) -> None:
    """Show the rack of BOOKIE."""
    for group, members in look(source, read_mapping).items():
        if bookie in members:
            emit_record({"group": group, **members[bookie]}, as_json=as_json, title=bookie)
            return
    raise CommandError(f"nobody has said where {bookie} stands; say: magnetar bookies racks set {bookie} RACK")


@racks_group.command("set")
@click.argument("bookie")
@click.argument("rack")
@click.option("--group", default=DEFAULT_GROUP, show_default=True, help="Group of bookies that BOOKIE belongs to.")
@click.option("--hostname", default="", help="Host name of the bookie. [default: the former one, or the bookie's id]")
@store_options
@json_option
def racks_set_command(source: StoreSource, bookie: str, rack: str, group: str, hostname: str, as_json: bool) -> None:
    """Set the rack of BOOKIE: RACK, /RACK or /REGION/RACK."""
    if source.online:
        with connected(source.admin_url) as admin:
            admin.bookies.set_rack(bookie, group, rack, hostname or None)
    else:
        run_with_store(source, lambda store: set_rack(store, bookie, rack, group=group, hostname=hostname))
    emit_done(as_json, bookie=bookie, rack=rack, group=group)


@racks_group.command("delete")
@click.argument("bookie")
@store_options
@json_option
def racks_delete_command(source: StoreSource, bookie: str, as_json: bool) -> None:
    """Remove the rack of BOOKIE."""
    if source.online:
        with connected(source.admin_url) as admin:
            admin.bookies.delete_rack(bookie)
    elif not run_with_store(source, lambda store: delete_rack(store, bookie)):
        raise CommandError(f"nobody has said where {bookie} stands: there is nothing to delete")
    emit_done(as_json, deleted=bookie)


# ---- The same under the names of pulsar-admin, through a broker

_bookie = click.option("-b", "--bookie", required=True, help="Id of the bookie (host:port).")


@bookies_group.command("racks-placement")
@shown
def placement_command(admin_url: str, as_json: bool) -> None:
    """Show the racks of all bookies, by group, as a broker says them."""
    with connected(admin_url) as admin:
        show_document(admin.bookies.racks(), as_json)


@bookies_group.command("list-bookies")
@shown
def list_bookies_command(admin_url: str, as_json: bool) -> None:
    """List the bookies that a broker knows, running or not."""
    with connected(admin_url) as admin:
        show_names(admin.bookies.list(), as_json, "bookie")


@bookies_group.command("get-bookie-rack")
@_bookie
@shown
def get_rack_command(bookie: str, admin_url: str, as_json: bool) -> None:
    """Show the rack of a bookie, as a broker says it."""
    with connected(admin_url) as admin:
        show_document(admin.bookies.rack(bookie), as_json, bookie)


@bookies_group.command("set-bookie-rack")
@_bookie
@click.option("-g", "--group", default=DEFAULT_GROUP, show_default=True, help="Group of bookies that it belongs to.")
@click.option("-r", "--rack", required=True, help="The rack: RACK, /RACK or /REGION/RACK.")
@click.option("-hn", "--hostname", help="Host name of the bookie.")
@common
def set_rack_command(bookie: str, group: str, rack: str, hostname: str | None, admin_url: str, as_json: bool) -> None:
    """Set the rack of a bookie, through a broker."""
    with connected(admin_url) as admin:
        admin.bookies.set_rack(bookie, group, rack, hostname)
    emit_done(as_json, bookie=bookie, rack=rack, group=group)


@bookies_group.command("delete-bookie-rack")
@_bookie
@common
def delete_rack_command(bookie: str, admin_url: str, as_json: bool) -> None:
    """Remove the rack of a bookie, through a broker."""
    with connected(admin_url) as admin:
        admin.bookies.delete_rack(bookie)
    emit_done(as_json, deleted=bookie)


# ---- Auto-recovery


@bookies_group.group("recovery")
def recovery_group() -> None:
    """Show, pause and configure auto-recovery."""


@recovery_group.command("status")
@store_options
@output_options
def recovery_status_command(source: StoreSource, as_json: bool) -> None:
    """Show whether auto-recovery is enabled, its auditor, the delay for lost bookies, and the number of under-replicated ledgers."""
    emit_record(look(source, _recovery_status), as_json=as_json, title="auto-recovery")


async def _recovery_status(store: MetadataStore) -> dict[str, object]:
    marks = _marks(store)
    return {
        "enabled": await marks.enabled(),
        "auditor": await elected_auditor(store),
        "lostBookieRecoveryDelay": await marks.lost_bookie_recovery_delay_s(),
        "underreplicatedLedgers": len(await marks.marked()),
        "ledgersBeingCopied": await store.children_count(paths.UNDERREPLICATION_LOCKS_PATH),
    }


@recovery_group.command("list")
@store_options
@output_options
def recovery_list_command(source: StoreSource, as_json: bool) -> None:
    """List under-replicated ledgers: missing bookies, since when (ms), and who is copying them."""
    emit(look(source, _underreplicated), as_json=as_json, title="ledgers that miss copies")


async def _underreplicated(store: MetadataStore) -> list[dict[str, object]]:
    marks = _marks(store)
    rows: list[dict[str, object]] = []
    for ledger_id in await marks.marked():
        mark = await marks.get(ledger_id)
        if mark is not None:
            names = " ".join(mark.replicas)
            row = {
                "ledgerId": ledger_id,
                "bookies": names,
                "since": mark.ctime_ms,
                "worker": await marks.holder(ledger_id),
            }
            rows.append(row)
    return rows


@recovery_group.command("enable")
@store_options
@json_option
def recovery_enable_command(source: StoreSource, as_json: bool) -> None:
    """Resume auto-recovery."""
    run_with_store(source, lambda store: _marks(store).enable())
    emit_done(as_json, enabled=True)


@recovery_group.command("disable")
@store_options
@json_option
def recovery_disable_command(source: StoreSource, as_json: bool) -> None:
    """Pause auto-recovery, for example before planned work on bookies. Pending work is kept."""
    run_with_store(source, lambda store: _marks(store).disable())
    emit_done(as_json, enabled=False)


@recovery_group.command("delay")
@click.argument("seconds", type=click.IntRange(0))
@store_options
@json_option
def recovery_delay_command(source: StoreSource, seconds: int, as_json: bool) -> None:
    """Set how long a single lost bookie may be away before its ledgers are copied; 0 copies at once."""
    run_with_store(source, lambda store: _marks(store).set_lost_bookie_recovery_delay(seconds))
    emit_done(as_json, lostBookieRecoveryDelay=seconds)


def _marks(store: MetadataStore) -> UnderreplicationManager:
    return UnderreplicationManager(store, SystemClock(), "")


# ---- Taking one out

force_option = click.option(
    "--force", is_flag=True, help="Proceed although the bookie is registered and may still take new ledgers."
)


@bookies_group.command("decommission")
@click.argument("bookie")
@force_option
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0), default=3600.0, show_default=True, help="Seconds to wait."
)
@store_options
@json_option
def decommission_command(source: StoreSource, bookie: str, force: bool, timeout_s: float, as_json: bool) -> None:
    """Wait until auto-recovery has copied every ledger away from BOOKIE, then delete its cookie.

    BOOKIE must be stopped. With --force its ledgers are copied by this command while it still serves.
    """
    total = asyncio.run(_decommission(source, bookie, force, timeout_s))
    emit_done(as_json, decommissioned=bookie, ledgers=total)


async def _decommission(source: StoreSource, bookie: str, force: bool, timeout_s: float) -> int:
    if force:
        return await _recover(source, bookie, forced=True, forget=True)
    async with opened_cluster(source) as cluster:
        recovery = cluster.recovery()
        decommission = Decommission(cluster.store, recovery.marks, recovery.auditor, cluster.clock, bookie)
        await decommission.check_stopped()
        last = Progress(0, 0)
        with progress_bar(f"freeing {bookie}") as advance:

            def report(progress: Progress) -> None:
                nonlocal last
                last = progress
                advance(progress.total - progress.left, progress.total)

            await decommission.wait_for_workers(report, timeout_s)
        await decommission.forget()
        return last.total


@bookies_group.command("recover")
@click.argument("bookie")
@force_option
@click.option(
    "--delete-cookie", "forget", is_flag=True, help="Also delete its cookie, so that an empty bookie may use the name."
)
@store_options
@json_option
def recover_command(source: StoreSource, bookie: str, force: bool, forget: bool, as_json: bool) -> None:
    """Copy the ledgers of BOOKIE to other bookies, in this process. It does not need auto-recovery.

    Ledgers that are still being written there are fenced and closed.
    """
    total = asyncio.run(_recover(source, bookie, forced=force, forget=forget))
    emit_done(as_json, recovered=bookie, ledgers=total)


async def _recover(source: StoreSource, bookie: str, *, forced: bool, forget: bool) -> int:
    async with opened_cluster(source) as cluster:
        recovery = cluster.recovery(retired=[bookie])
        decommission = Decommission(cluster.store, recovery.marks, recovery.auditor, cluster.clock, bookie)
        if not forced:
            await decommission.check_stopped()
        last = Progress(0, 0)
        with progress_bar(f"copying from {bookie}") as advance:

            def report(progress: Progress) -> None:
                nonlocal last
                last = progress
                advance(progress.total - progress.left, progress.total)

            await decommission.copy(recovery.repairer, cluster.client, report, b"")
        if forget:
            await decommission.forget()
        return last.total


TIMEOUT_S = 2.0


async def free_spaces(bookies: Mapping[str, BookieServiceInfo], options: ChannelOptions) -> dict[str, int]:
    """Bookie id -> free bytes, of those that answered soon. `options`: what they ask their clients for."""
    network, clock, rng = AsyncioNetwork(), SystemClock(), random.Random(os.urandom(16))
    options = replace(options, connect_timeout_s=TIMEOUT_S, read_timeout_s=TIMEOUT_S)
    addresses = {name: (info.rpc.host, info.rpc.port) for name, info in bookies.items() if info.rpc is not None}
    async with TaskScope("free space") as scope:
        channels = [RemoteBookie(address, network, clock, rng, scope, options) for address in addresses.values()]
        try:
            answers = await asyncio.gather(*map(_free_bytes, channels))
        finally:
            for channel in channels:
                channel.close()
    return {name: free for name, free in zip(addresses, answers, strict=True) if free is not None}


async def _free_bytes(channel: RemoteBookie) -> int | None:
    answered: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
    channel.bookie_info(partial(_note, answered))
    return await answered


def _note(answered: asyncio.Future[int | None], code: int, total_bytes: int, free_bytes: int) -> None:
    if not answered.done():
        answered.set_result(free_bytes if code == ReturnCode.OK else None)
