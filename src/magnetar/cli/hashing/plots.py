"""Pictures of rings, ranges and vnode maps, before and after. Needs matplotlib, the extra `[plot]`; imported for `--plot` only.

SVG files come out the same for the same input: no date, fixed ids, text as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, pi, sqrt
from pathlib import Path
from typing import Any

from magnetar.hashing.errors import MissingExtraError
from magnetar.hashing.mapping import VnodeMapping
from magnetar.hashing.ranges import Range

MAX_OUTLINED_CELLS = 4_096
"""Vnode maps with more cells are drawn as an image without outlines: files would grow to megabytes."""

Arc = tuple[int, int, str]
"""First place, first place behind it, owner."""


def plot_rings(path: Path, panels: Sequence[tuple[str, Sequence[Arc], int]]) -> None:
    """Circles side by side: (title, arcs, size of the circle). MissingExtraError without matplotlib."""
    plt = pyplot()
    members = sorted({owner for _, arcs, _ in panels for _, _, owner in arcs})
    colours = _colours(plt, members)
    figure = plt.figure(figsize=(5 * len(panels), 5.6))
    for number, (title, arcs, size) in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), number, projection="polar")
        axes.set_theta_zero_location("N")
        axes.set_theta_direction(-1)
        merged = _merge(arcs)
        axes.bar(
            [2 * pi * start / size for start, _, _ in merged],
            [1] * len(merged),
            [2 * pi * (stop - start) / size for start, stop, _ in merged],
            bottom=2,
            align="edge",
            color=[colours[owner] for _, _, owner in merged],
        )
        axes.set_ylim(0, 3)
        axes.set_axis_off()
        axes.set_title(title)
    _legend(figure, plt, members, colours)
    save(plt, figure, path)


def plot_ranges(path: Path, rows: Sequence[tuple[str, Sequence[Range]]], size: int) -> None:
    """One bar a step, cut into the ranges of its members: (label, ranges). MissingExtraError without matplotlib."""
    plt = pyplot()
    members = _in_order(owner for _, ranges in rows for _, _, owner in ranges)
    colours = _colours(plt, members)
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.5 * len(rows)), layout="constrained")
    for row, (_, ranges) in enumerate(rows):
        spans = [(start, end + 1 - start) for start, end, _ in ranges]
        axes.broken_barh(
            spans, (row - 0.36, 0.72), facecolors=[colours[o] for *_, o in ranges], edgecolor="white", linewidth=0.4
        )
        for start, end, owner in ranges:
            if end - start > size / 14:
                axes.text((start + end + 1) / 2, row, owner, ha="center", va="center", color="white", fontsize=8)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, size)
    axes.set_xticks([size * quarter // 4 for quarter in range(5)])
    axes.set_xlabel("slot")
    _legend(figure, plt, members, colours)
    save(plt, figure, path)


def plot_mappings(path: Path, before: VnodeMapping, after: VnodeMapping) -> None:
    """Two maps of vnodes, a cell each; in the second one those that moved are outlined. MissingExtraError without matplotlib."""
    plt = pyplot()
    members = _in_order([*before.units, *after.units])
    colours = _colours(plt, members)
    width = ceil(sqrt(before.vnodes))
    figure, both = plt.subplots(1, 2, figsize=(9, 5.2), layout="constrained")
    names = [[mapping.units[owner] for owner in mapping.owners] for mapping in (before, after)]
    moved = [vnode for vnode, (old, new) in enumerate(zip(*names, strict=True)) if old != new]
    for axes, mapping, owners in zip(both, (before, after), names, strict=True):
        _draw_map(plt, axes, [colours[owner] for owner in owners], width)
        axes.set_title(f"{len(mapping.units)} units, version {mapping.version}")
    if before.vnodes <= MAX_OUTLINED_CELLS:
        for vnode in moved:
            cell = plt.Rectangle((vnode % width, vnode // width), 1, 1, fill=False, edgecolor="black", linewidth=1.6)
            both[1].add_patch(cell)
    figure.suptitle(f"{len(moved)} of {before.vnodes} vnodes move (outlined)")
    _legend(figure, plt, members, colours)
    save(plt, figure, path)


def _draw_map(plt: Any, axes: Any, colours: list[Any], width: int) -> None:
    height = ceil(len(colours) / width)
    if len(colours) > MAX_OUTLINED_CELLS:
        blank = (1.0, 1.0, 1.0, 1.0)
        cells = [*colours, *[blank] * (width * height - len(colours))]
        image = [cells[row * width : (row + 1) * width] for row in range(height)]
        axes.imshow(image, extent=(0, width, height, 0), interpolation="nearest")
    else:
        for vnode, colour in enumerate(colours):
            axes.add_patch(
                plt.Rectangle((vnode % width, vnode // width), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.5)
            )
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_aspect("equal")
    axes.set_axis_off()


def pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as missing:
        raise MissingExtraError("--plot needs matplotlib: pip install 'magnetar[plot]'") from missing
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "magnetar"
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    return pyplot


def _in_order(members: Any) -> list[str]:
    return list(dict.fromkeys(members))


def _colours(plt: Any, members: list[str]) -> dict[str, Any]:
    palette = plt.get_cmap("tab10" if len(members) <= 10 else "tab20")
    count = 10 if len(members) <= 10 else 20
    return {member: palette(number % count) for number, member in enumerate(members)}


def _merge(arcs: Sequence[Arc]) -> list[Arc]:
    merged: list[Arc] = []
    for start, stop, owner in arcs:
        if merged and merged[-1][2] == owner and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop, owner)
        elif stop > start:
            merged.append((start, stop, owner))
    return merged


def _legend(figure: Any, plt: Any, members: list[str], colours: dict[str, Any]) -> None:
    handles = [plt.Rectangle((0, 0), 1, 1, color=colours[member]) for member in members]
    if figure.get_layout_engine() is None:
        figure.legend(handles, members, loc="lower center", ncols=min(len(members), 6), frameon=False)
    else:
        figure.legend(handles, members, loc="outside lower center", ncols=min(len(members), 6), frameon=False)


def save(plt: Any, figure: Any, path: Path) -> None:
    svg = path.suffix.lower() == ".svg"
    figure.savefig(path, metadata={"Date": None} if svg else {"Software": None}, dpi=120)
    plt.close(figure)
