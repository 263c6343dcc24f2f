"""`magnetar vnodes`: plans of least movement, and the vnodes of typed keys."""

from __future__ import annotations

import json
from pathlib import Path

import click

from magnetar.cli.hashing.support import hashing_errors, parse_nodes, plot_option
from magnetar.cli.output import emit, emit_record, output_options, print_json
from magnetar.hashing.errors import KeyEncodingError, VnodeCountError
from magnetar.hashing.key_encoding import encode_key
from magnetar.hashing.key_text import value_of
from magnetar.hashing.key_types import KeyType
from magnetar.hashing.mapping import VnodeMapping, diff
from magnetar.hashing.vnode import DEFAULT_VNODES, vnode


@click.group("vnodes")
def vnodes_group() -> None:
    """Map keys to vnodes and vnodes to units (parallel workers), and plan changes that move as little as possible."""


@vnodes_group.command("plan")
@click.option("--units", help="Current units: a number, or names with weights such as a,b=2.")
@click.option("--to", "target", required=True, help="Units after the change: a number, or names with weights.")
@click.option("--vnodes", "vnode_count", default=DEFAULT_VNODES, show_default=True, help="Number of vnodes.")
@click.option(
    "--mapping",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON file with the current mapping.",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the new mapping to this JSON file.")
@plot_option
@output_options
@hashing_errors
def plan_command(
    units: str | None,
    target: str,
    vnode_count: int,
    mapping: Path | None,
    out: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Show which vnodes move when --units (or --mapping) become --to; no more move than necessary."""
    if (units is None) == (mapping is None):
        raise click.UsageError("give the units now by either --units or --mapping")
    if mapping is not None:
        before = VnodeMapping.from_json(mapping.read_text())
    else:
        assert units is not None
        before = VnodeMapping.even(_units(units), vnode_count)
    after = before.rescale(_units(target))
    moves = diff(before, after)
    if out is not None:
        out.write_text(after.to_json() + "\n")
    if plot is not None:
        from magnetar.cli.hashing.plots import plot_mappings

        plot_mappings(plot, before, after)
    if as_json:
        print_json(
            {
                "vnodes": before.vnodes,
                "moved": len(moves),
                "rate": len(moves) / before.vnodes,
                "before": before.counts(),
                "after": after.counts(),
                "moves": [{"vnode": move.vnode, "from": move.source, "to": move.target} for move in moves],
                "mapping": json.loads(after.to_json()),
            }
        )
        return
    emit_record(
        {"vnodes": before.vnodes, "moved": len(moves), "rate": len(moves) / before.vnodes, "version": after.version},
        as_json=False,
    )
    counts_before, counts_after = before.counts(), after.counts()
    rows = []
    for unit in dict.fromkeys((*before.units, *after.units)):
        given = [move.vnode for move in moves if move.source == unit]
        taken = [move.vnode for move in moves if move.target == unit]
        rows.append(
            {
                "unit": unit,
                "before": counts_before.get(unit, 0),
                "after": counts_after.get(unit, 0),
                "gives": _runs(given),
                "takes": _runs(taken),
            }
        )
    emit(rows, as_json=False, title="units")


@vnodes_group.command("key")
@click.argument("values", nargs=-1, required=True)
@click.option("--types", required=True, help="Column types, such as bigint,varchar or array<int>.")
@click.option("--vnodes", "vnode_count", default=DEFAULT_VNODES, show_default=True, help="Number of vnodes.")
@output_options
@hashing_errors
def key_command(values: tuple[str, ...], types: str, vnode_count: int, as_json: bool) -> None:
    """Show the vnode of a key of one or several typed columns, and the bytes that are hashed.

    NULL is a NULL. Dates and times in ISO form, bytea in hexadecimal, intervals in seconds, nested types as JSON.
    """
    # Types may hold commas of their own, so they are read as the fields of one struct.
    columns = KeyType.parse("struct<" + _named(types) + ">").children
    if len(columns) != len(values):
        raise KeyEncodingError(f"{len(values)} values for {len(columns)} types")
    row = [value_of(text, column) for text, column in zip(values, columns, strict=True)]
    record = {"vnode": vnode(row, columns, vnode_count), "vnodes": vnode_count, "bytes": encode_key(row, columns).hex()}
    emit_record(record, as_json=as_json)


def _units(text: str) -> int | dict[str, float]:
    stripped = text.strip()
    if stripped.lstrip("-").isdecimal():
        if int(stripped) < 1:
            raise VnodeCountError(f"{stripped} units: give at least 1")
        return int(stripped)
    return parse_nodes(text)


def _runs(vnodes: list[int]) -> str:
    """`3-5 9` for 3, 4, 5, 9."""
    runs: list[list[int]] = []
    for number in vnodes:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _named(types: str) -> str:
    """`int,array<int>` as `c0:int,c1:array<int>`: commas inside of brackets belong to a type."""
    parts, depth, current = [], 0, ""
    for character in types:
        depth += character in "<("
        depth -= character in ">)"
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return ",".join(f"c{number}:{part}" for number, part in enumerate([*parts, current]))
