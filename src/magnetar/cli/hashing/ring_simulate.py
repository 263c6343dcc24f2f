"""`magnetar ring simulate`: joins and leaves of a Key_Shared subscription, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import click

from magnetar.cli.hashing.support import hashing_errors, plot_option
from magnetar.cli.output import emit, output_options, print_json
from magnetar.hashing.consistent import ConsistentHashRanges
from magnetar.hashing.errors import HashingError, InvalidRangeError
from magnetar.hashing.murmur3 import KEY_SHARED_SLOTS
from magnetar.hashing.ranges import AutoSplitRanges, Range
from magnetar.hashing.sticky import StickyRanges

MAX_STEPS = 10_000
"""A longer script is refused: its output could not be read."""

MAX_RANGES_SHOWN = 16
"""A step with more ranges shows their number only, unless --ranges or --json asks for all."""


class Step(NamedTuple):
    """One event and what the subscription looks like after it."""

    event: str
    ranges: list[Range]
    moved: int
    orphaned: int


@click.command("simulate")
@click.argument("events", nargs=-1)
@click.option(
    "--script", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="File with one event per line."
)
@click.option(
    "--algorithm",
    default="autosplit",
    show_default=True,
    type=click.Choice(["autosplit", "consistent", "consistent-pr-18878", "sticky"]),
    help="Policy that assigns hash slots to consumers.",
)
@click.option(
    "--points",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Ring points per consumer (consistent hashing).",
)
@click.option("--ranges", "all_ranges", is_flag=True, help="Show all ranges, however many there are.")
@plot_option
@output_options
@hashing_errors
def simulate_command(
    events: tuple[str, ...],
    script: Path | None,
    algorithm: str,
    points: int,
    all_ranges: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Let consumers join and leave: who owns which slots after each step, and how many slots moved.

    EVENTS are pairs of words: join C1 join C2 leave C1. With sticky ranges a join names them: join C1=0-100,200-300.
    In a script every line is one event; # begins a comment.
    """
    script_events = _read(script) if script is not None else []
    steps = _run(_selector(algorithm, points), [*script_events, *_pairs(events)])
    if plot is not None:
        from magnetar.cli.hashing.plots import plot_ranges

        plot_ranges(plot, [(step.event, step.ranges) for step in steps], KEY_SHARED_SLOTS)
    if as_json:
        print_json([_record(number, step) for number, step in enumerate(steps, 1)])
        return
    rows = [
        {
            "step": number,
            "event": step.event,
            "moved": step.moved,
            "share_moved": step.moved / KEY_SHARED_SLOTS,
            "unowned": step.orphaned,
            "slots": "  ".join(f"{member}:{count}" for member, count in _counts(step.ranges).items()),
            "ranges": _shown(step.ranges, all_ranges),
        }
        for number, step in enumerate(steps, 1)
    ]
    emit(rows, as_json=False, title=f"{algorithm}, {KEY_SHARED_SLOTS} slots")


def _read(script: Path) -> list[tuple[str, str]]:
    words = [line.split("#", 1)[0].split() for line in script.read_text().splitlines()]
    return _pairs(tuple(word for line in words for word in line))


def _pairs(words: tuple[str, ...]) -> list[tuple[str, str]]:
    if len(words) % 2:
        raise HashingError(f"{words[-1]!r} stands alone: events are pairs such as join C1")
    pairs = list(zip(words[::2], words[1::2], strict=True))
    for verb, _ in pairs:
        if verb not in ("join", "leave"):
            raise HashingError(f"unknown event {verb!r}: give join or leave")
    return pairs


def _selector(algorithm: str, points: int) -> Any:
    if algorithm == "autosplit":
        return AutoSplitRanges()
    if algorithm == "sticky":
        return StickyRanges()
    return ConsistentHashRanges(points, "pr-18878" if algorithm == "consistent-pr-18878" else None)


def _run(selector: Any, events: list[tuple[str, str]]) -> list[Step]:
    if not events:
        raise HashingError("nothing happens: give events such as join C1 join C2 leave C1, or --script")
    if len(events) > MAX_STEPS:
        raise HashingError(f"{len(events)} events: at most {MAX_STEPS}")
    steps = []
    before = [None] * KEY_SHARED_SLOTS
    for verb, what in events:
        member, _, ranges = what.partition("=")
        if verb == "leave":
            selector.remove(member)
        elif isinstance(selector, StickyRanges):
            selector.add(member, _parse_ranges(member, ranges))
        elif ranges:
            raise InvalidRangeError(f"{what!r}: only sticky consumers bring ranges, use --algorithm sticky")
        else:
            selector.add(member)
        selector.validate()
        after = _table(selector.ranges())
        moved = sum(1 for old, new in zip(before, after, strict=True) if old != new and None not in (old, new))
        steps.append(Step(f"{verb} {member}", selector.ranges(), moved, after.count(None)))
        before = after
    return steps


def _parse_ranges(member: str, text: str) -> list[tuple[int, int]]:
    found = []
    for part in text.split(",") if text else []:
        start, dash, end = part.partition("-")
        if not dash or not start.isdecimal() or not end.isdecimal():
            raise InvalidRangeError(f"range {part!r} of {member!r}: write it like 0-100, with numbers from 0 on")
        found.append((int(start), int(end)))
    return found


def _table(ranges: list[Range]) -> list[Any]:
    table: list[Any] = [None] * KEY_SHARED_SLOTS
    for start, end, member in ranges:
        table[start : end + 1] = [member] * (end + 1 - start)
    return table


def _counts(ranges: list[Range]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for start, end, member in ranges:
        counts[member] = counts.get(member, 0) + end + 1 - start
    return dict(sorted(counts.items()))


def _shown(ranges: list[Range], all_ranges: bool) -> str:
    if len(ranges) > MAX_RANGES_SHOWN and not all_ranges:
        return f"{len(ranges)} ranges"
    return " | ".join(f"{start}-{end} {member}" for start, end, member in ranges)


def _record(number: int, step: Step) -> dict[str, object]:
    return {
        "step": number,
        "event": step.event,
        "moved": step.moved,
        "unowned": step.orphaned,
        "slots": _counts(step.ranges),
        "ranges": [{"start": start, "end": end, "member": member} for start, end, member in step.ranges],
    }
