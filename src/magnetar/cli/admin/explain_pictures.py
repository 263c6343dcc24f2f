"""What would move, as pictures: lines of letters for a terminal, and SVG as `magnetar ring` and `vnodes` draw them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from magnetar.hashing.errors import MissingExtraError

F = TypeVar("F", bound=Callable[..., Any])

SLOTS: Final = 65536
COLUMNS: Final = 64
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
ARCS_OF_RANGES_MAX: Final = 40
"""Above it, owners change so often (a ring of points) that a circle shows more than a bar."""

Ranges = Sequence[Sequence[Any]]
"""(first, last, owner), ascending."""


def svg_option(function: F) -> F:
    """`--svg FILE`."""
    return click.option(
        "--svg",
        type=click.Path(dir_okay=False, path_type=Path),
        callback=_checked,
        help="Draw what would move into FILE.svg.",
    )(function)


def _checked(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and value.suffix.lower() != ".svg":
        raise click.BadParameter(f"{value} ends in {value.suffix or 'nothing'}: name a .svg")
    if value is not None and not value.absolute().parent.is_dir():
        raise click.BadParameter(f"directory {value.absolute().parent} does not exist: make it first")
    return value


def needs_what_if(svg: Path | None, asked: bool, flags: str) -> None:
    """UsageError for a picture of nothing."""
    if svg is not None and not asked:
        raise click.UsageError(f"--svg draws what would move: give {flags} as well")


def lines_of(title: str, change: Mapping[str, Any], size: int, unit: str) -> Iterator[str]:
    """Places as a line before and after: a letter for each owner, a dot where nobody is, a mark below what moves."""
    before, after = change["rangesBefore"], change["rangesAfter"]
    names = list(dict.fromkeys(owner for _, _, owner in (*before, *after)))
    letters = {name: LETTERS[place % len(LETTERS)] for place, name in enumerate(names)}
    drawn = _drawn(before, letters, size), _drawn(after, letters, size)
    yield ""
    yield f"{title}: {unit} would move"
    if change.get("ownerBefore") or change.get("ownerAfter"):
        yield f"  owner of the key: {change['ownerBefore'] or 'nobody'} -> {change['ownerAfter'] or 'nobody'}"
    yield f"  before {drawn[0]}"
    yield f"  after  {drawn[1]}"
    marks = "".join("^" if old != new else " " for old, new in zip(*drawn, strict=True)).rstrip()
    if marks:
        yield f"         {marks}"
    yield "  " + ", ".join(f"{letter} {name}" for name, letter in letters.items())


def _drawn(ranges: Ranges, letters: Mapping[str, str], size: int) -> str:
    step = size / COLUMNS
    middles = (int(column * step + step / 2) for column in range(COLUMNS))
    owners = (next((owner for start, end, owner in ranges if start <= middle <= end), None) for middle in middles)
    return "".join("." if owner is None else letters[owner] for owner in owners)


def draw_ranges(svg: Path, change: Mapping[str, Any], size: int) -> None:
    """Bars before and after; circles where owners change often. Raises UsageError without matplotlib."""
    from magnetar.cli.hashing.plots import plot_ranges, plot_rings

    before, after = change["rangesBefore"], change["rangesAfter"]
    try:
        if max(len(before), len(after)) > ARCS_OF_RANGES_MAX:
            panels = [
                (title, [(start, end + 1, owner) for start, end, owner in ranges], size)
                for title, ranges in (("before", before), ("after", after))
            ]
            plot_rings(svg, panels)
        else:
            rows = [("before", before), ("after", after)]
            plot_ranges(
                svg, [(title, [(start, end, owner) for start, end, owner in ranges]) for title, ranges in rows], size
            )
    except MissingExtraError as error:
        raise click.UsageError(str(error).replace("--plot", "--svg")) from None


def draw_units(svg: Path, change: Mapping[str, Any]) -> None:
    """Two maps of vnodes, those that move outlined. Raises UsageError without matplotlib."""
    from magnetar.cli.hashing.plots import plot_mappings
    from magnetar.hashing.mapping import VnodeMapping

    def mapping(ranges: Ranges, version: int) -> VnodeMapping:
        units = list(dict.fromkeys(owner for _, _, owner in sorted(ranges, key=lambda each: str(each[2]))))
        owners = [units.index(owner) for start, end, owner in ranges for _ in range(start, end + 1)]
        return VnodeMapping(tuple(units), tuple(owners), tuple(1.0 for _ in units), version)

    try:
        plot_mappings(svg, mapping(change["rangesBefore"], 1), mapping(change["rangesAfter"], 2))
    except MissingExtraError as error:
        raise click.UsageError(str(error).replace("--plot", "--svg")) from None
