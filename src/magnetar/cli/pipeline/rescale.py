"""`magnetar pipeline rescale`: other vnodes for the units, no other bytes for the state."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, TypeAlias

import click

from magnetar.admin.client.client import AdminClient
from magnetar.base.clock import SystemClock
from magnetar.cli.admin.common import common
from magnetar.cli.admin.http import connected
from magnetar.cli.errors import CommandError
from magnetar.cli.output import print_json
from magnetar.cli.pipeline.access import ask_driver, meant
from magnetar.cli.storage.store_access import StoreSource, opened_store
from magnetar.hashing.errors import HashingError
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import ManifestStore
from magnetar.pipeline.views.control.driver_lock import DriverLock, holder
from magnetar.pipeline.views.control.listing import Overview
from magnetar.pipeline.views.control.mapping import MappingStore
from magnetar.pipeline.views.control.rescale import RescalePlan, merges, splits, wanted_units

Say: TypeAlias = Callable[[str], object]


@click.command("rescale")
@click.argument("name", required=False)
@click.option("--units", type=click.IntRange(1), help="New number of units.")
@click.option("--auto", is_flag=True, help="Choose the number once, from the load of the last seconds.")
@click.option(
    "--adaptive", is_flag=True, help="Let the running pipeline follow its load, until --units is given or it ends."
)
@click.option(
    "--least", type=click.IntRange(1), default=1, show_default=True, help="Minimum for --auto and --adaptive."
)
@click.option(
    "--most",
    type=click.IntRange(1),
    help="Maximum for --auto (default: this machine's processors) and --adaptive (default: Spark's cores).",
)
@click.option(
    "--split",
    is_flag=True,
    help="Split the scalable topics of views with vnode.hash = 'segment' as well, until there is a segment for each unit.",
)
@click.option(
    "--merge",
    is_flag=True,
    help="Merge neighbouring segments of these topics as well, until there are at most as many segments as units.",
)
@click.option(
    "--dry-run", is_flag=True, help="Only show which vnodes would move, and which segments would be split or merged."
)
@click.option(
    "--metadata",
    "metadata_url",
    help="Reach the pipeline through this metadata store (see run --metadata), from any machine.",
)
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds to wait."
)
@common
def rescale_command(
    name: str | None,
    units: int | None,
    auto: bool,
    adaptive: bool,
    least: int,
    most: int | None,
    split: bool,
    merge: bool,
    dry_run: bool,
    metadata_url: str | None,
    timeout_s: float,
    admin_url: str,
    as_json: bool,
) -> None:
    """Change the number of units of pipeline NAME. Takes effect with the next epoch if it is running, otherwise at once.

    As few vnodes as possible move, and no state is copied: units read their new vnodes from the existing files. Topics that units
    read by segments get as many segments as there are units with --split where they have fewer, with --merge where they have more. A
    command that was interrupted is given again: what it had done stays, and it does the rest.
    """
    if (units is not None) + auto + adaptive != 1:
        raise click.UsageError("give one of --units N, --auto and --adaptive")
    if (split or merge) and (adaptive or metadata_url is not None):
        raise click.UsageError(
            f"--{'split' if split else 'merge'} goes with --units N or --auto, on the machine of the pipeline"
        )
    if metadata_url is not None:
        if name is None or units is None or dry_run:
            raise click.UsageError("with --metadata give NAME and --units N")
        outcome = asyncio.run(_through_store(metadata_url, name, units))
        print_json(outcome) if as_json else click.echo(f"{name}: {outcome['vnodes_moved']} vnodes are to move")
        return
    found = meant(name)
    if adaptive:
        outcome = adapted(found, least, most, timeout_s)
        print_json(outcome) if as_json else click.echo(
            f"{found.place.name} follows its load between {outcome['least']} and {outcome['most']} units"
        )
        return
    reason = None
    if units is None:
        if holder(found.place.local) is None:
            raise CommandError(f"pipeline {found.place.name} is not running, so it has no load; give --units N")
        most = most or max(os.cpu_count() or 1, least)
        units, reason = wanted_units(found.status.load(), least, most)
        if not as_json:
            click.echo(f"{units} units: {reason}", err=True)
    say = quiet if as_json else click.echo
    outcome = rescaled(found, units, timeout_s, say, dry_run=dry_run)
    if split or merge:
        outcome |= _fitted(found, units, admin_url, say, split=split, merge=merge, dry_run=dry_run)
    if as_json:
        print_json(outcome | ({"reason": reason} if reason else {}))


def adapted(found: Overview, least: int, most: int | None, timeout_s: float) -> dict[str, Any]:
    """A running pipeline follows its load from now on. CommandError."""
    if holder(found.place.local) is None:
        raise CommandError(
            f"pipeline {found.place.name} is not running; write ALTER MATERIALIZED VIEW v SET PARALLELISM = ADAPTIVE into its file"
        )
    answer = ask_driver(found.place, "adapt", timeout_s, most, least)
    return {"name": found.place.name, "least": answer["least"], "most": answer["most"]}


def _fitted(
    found: Overview, units: int, admin_url: str, say: Say, *, split: bool, merge: bool, dry_run: bool
) -> dict[str, list[str]]:
    """The ranges that were split and merged, `TOPIC START-END` and `TOPIC START-END START-END`, for each of the two that was asked for.

    CommandError for a pipeline without such a topic.
    """
    topics, mapping = found.split_with_units(), RescalePlan.to(found.mapping, units).after
    if not topics:
        raise CommandError(
            f"no view of {found.place.name} reads segments by its units; write WITH (vnode.hash = 'segment') into one over topic://"
        )
    done = {name: list[str]() for name, asked in (("split", split), ("merged", merge)) if asked}

    def note(name: str, topic: str, *ranges: tuple[int, int]) -> None:
        done[name].append(" ".join([topic, *(f"{start:04x}-{end:04x}" for start, end in ranges)]))
        say(f"{f'would be {name}' if dry_run else name}: {done[name][-1]}")

    with connected(admin_url) as admin:
        scalable = admin.scalable_topics
        for topic in topics:
            before = list(_active(admin, topic))
            for each in splits(mapping, before) if split else []:
                if not dry_run:
                    scalable.split(topic, _active(admin, topic)[each])
                note("split", topic, each)
            for low, high in merges(mapping, before) if merge else []:
                if not dry_run:
                    now = _active(admin, topic)
                    scalable.merge(topic, now[low], now[high])
                note("merged", topic, low, high)
    return done


def _active(admin: AdminClient, topic: str) -> dict[tuple[int, int], int]:
    """The ids of the segments that take messages, by their ranges."""
    segments = admin.scalable_topics.metadata(topic).segments.values()
    return {
        (each.hash_range.start, each.hash_range.end): each.segment_id for each in segments if each.state == "ACTIVE"
    }


def quiet(line: str) -> None:
    """Says nothing."""


def rescaled(found: Overview, units: int, timeout_s: float, say: Say, *, dry_run: bool = False) -> dict[str, Any]:
    """Do it, say it line by line, and return it as plain values. CommandError, CatalogError."""
    if units > found.mapping.vnodes:
        raise CommandError(
            f"{units} units for {found.mapping.vnodes} vnodes: some would have nothing, take fewer units"
        )
    try:
        plan = RescalePlan.to(found.mapping, units)
    except HashingError as error:
        raise CommandError(str(error)) from error
    outcome: dict[str, Any] = {"name": found.place.name, **plan.describe(), "dry_run": dry_run}
    for line in _drawn(plan):
        say(line)
    if dry_run:
        return outcome
    if not plan.moves:
        say(f"{found.place.name} has {units} units already")
        return outcome | {"pause_s": 0.0}
    if holder(found.place.local) is None:
        _commit(found, plan)
        say(f"{len(plan.moves)} of {plan.before.vnodes} vnodes moved; it is not running, so nothing paused")
        return outcome | {"pause_s": 0.0}
    answer = ask_driver(found.place, "rescale", timeout_s, units)
    moved, pause_s, epoch = answer["vnodes_moved"], answer["pause_s"], answer["epoch"]
    say(
        f"{moved} of {plan.before.vnodes} vnodes moved with epoch {epoch}; pause {pause_s:.2f} s; 0 bytes of state rewritten"
    )
    return outcome | {"vnodes_moved": moved, "pause_s": pause_s, "epoch": epoch}


async def _through_store(url: str, name: str, units: int) -> dict[str, Any]:
    """The driver follows; nothing is known of when it does."""
    async with opened_store(StoreSource(url, None, None)) as store:
        mappings = MappingStore(store, name)
        before = await mappings.read()
        after = await mappings.rescale(units)
    plan = RescalePlan(before.mapping if before is not None else after.mapping, after.mapping)
    return {"name": name, **plan.describe(), "node_version": after.node_version}


def _commit(found: Overview, plan: RescalePlan) -> None:
    """The mapping of a pipeline that does not run. Its lock keeps drivers of this machine away meanwhile."""
    files, clock = StateFiles(found.place.directory), SystemClock()
    if not files.local:
        raise CommandError(
            f"{found.place.directory} may have a driver on another machine: rescale it there, or run it here with "
            f"--units {len(plan.after.units)}"
        )
    with DriverLock(found.place.local, found.place.name, clock):
        store = ManifestStore(files, clock)
        latest = store.latest()
        assert latest is not None  # there was one to make the plan from
        store.commit(latest.next(mapping=plan.after.to_json()))


def _drawn(plan: RescalePlan) -> list[str]:
    before, after, moves = plan.before.counts(), plan.after.counts(), plan.moves
    lines = plan.picture()
    for unit in dict.fromkeys((*plan.before.units, *plan.after.units)):
        gives, takes = (sum(getattr(move, end) == unit for move in moves) for end in ("source", "target"))
        lines.append(
            f"unit {unit}: {before.get(unit, 0)} vnodes -> {after.get(unit, 0)} (gives {gives}, takes {takes})"
        )
    return lines
