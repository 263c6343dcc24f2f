"""`magnetar ring`: compare rings, ranges and reference schemes: what moves, how even it is, and why a key lies where it lies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magnetar.cli.hashing.ring_simulate import simulate_command
from magnetar.cli.hashing.support import hashing_errors, parse_nodes, plot_option, progress
from magnetar.cli.output import emit, emit_record, output_options, print_json

if TYPE_CHECKING:
    from magnetar.hashing.analysis.schemes import Scheme

ALGORITHMS = (
    "ketama", "crc32", "autosplit", "consistent", "consistent-pr-18878", "sticky", "vnodes", "modulo", "jump",
    "rendezvous", "bounded", "all",
)  # fmt: skip
DEFAULT_KEYS = 1_000_000


def _common(function: Any) -> Any:
    for option in reversed(
        (
            click.option("--nodes", required=True, help="Nodes with weights, such as A,B=2,C."),
            click.option(
                "--replicas", type=int, help="Replicas (ketama 40, crc32 20) or ring points (consistent 100) per node."
            ),
            click.option("--vnodes", "vnode_count", default=256, show_default=True, help="Number of vnodes."),
        )
    ):
        function = option(function)
    return function


def _measured(function: Any) -> Any:
    for option in reversed(
        (
            click.option(
                "--algorithm", "algorithms", multiple=True, default=("ketama",), show_default=True,
                type=click.Choice(ALGORITHMS), help="May be repeated.",
            ),
            click.option("--keys", default=DEFAULT_KEYS, show_default=True, help="Number of keys, counted from 0."),
            click.option("--key-format", default="key-{}", show_default=True, help="Format of a key; {} is replaced by its number."),
        )
    ):  # fmt: skip
        function = option(function)
    return _common(function)


@click.group("ring")
def ring_group() -> None:
    """Build, compare and explain hash rings and the ranges of Key_Shared."""


ring_group.add_command(simulate_command)


@ring_group.command("migrate")
@_measured
@click.option("--to", "target", required=True, help="Nodes after the change.")
@click.option("--flows", is_flag=True, help="Also show how many keys go from which node to which.")
@plot_option
@output_options
@hashing_errors
def migrate_command(
    algorithms: tuple[str, ...],
    keys: int,
    key_format: str,
    nodes: str,
    replicas: int | None,
    vnode_count: int,
    target: str,
    flows: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Count the keys whose node changes from --nodes to --to.

    expected: the rate of an ideal scheme of this kind; exact: the part of the hash space that changes hands, which the
    measured rate tends to; needless: keys moved between two nodes that both stayed.
    """
    from magnetar.hashing.analysis.keys import key_chunks
    from magnetar.hashing.analysis.migration import exact_rate, expected_rate, measure
    from magnetar.hashing.analysis.schemes import build

    before, after = parse_nodes(nodes), parse_nodes(target)
    found, schemes = [], []
    for algorithm in _expand(algorithms, before, after):
        old = build(algorithm, before, replicas=replicas, vnode_count=vnode_count)
        new = old.changed(after)
        with progress(keys, algorithm) as report:
            migration = measure(old, new, key_chunks(key_format, keys), keys, report)
        record: dict[str, object] = {
            "algorithm": algorithm,
            "moved": migration.moved,
            "total": migration.total,
            "rate": migration.rate,
            "expected": expected_rate(algorithm, before, after),
            "exact": exact_rate(old, new),
            "needless": migration.needless,
        }
        if as_json:
            record["before"], record["after"] = migration.counts_before(), migration.counts_after()
            record["flows"] = [{"from": s, "to": t, "keys": count} for s, t, count in migration.moves()]
        found.append((record, migration))
        schemes.append((old, new))
    if plot is not None:
        _plot_schemes(plot, [*schemes[0]])
    if as_json:
        print_json([record for record, _ in found] if len(found) > 1 else found[0][0])
        return
    if len(found) == 1:
        emit_record(found[0][0], as_json=False)
    else:
        emit([record for record, _ in found], as_json=False, title=f"{len(before)} to {len(after)} nodes")
    if flows:
        for record, migration in found:
            rows = [{"from": source, "to": target, "keys": count} for source, target, count in migration.moves()]
            emit(rows, as_json=False, title=str(record["algorithm"]))


@ring_group.command("balance")
@_measured
@plot_option
@output_options
@hashing_errors
def balance_command(
    algorithms: tuple[str, ...],
    keys: int,
    key_format: str,
    nodes: str,
    replicas: int | None,
    vnode_count: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Count keys per node. Loads are relative to each node's fair share: 1 is perfect."""
    from magnetar.hashing.analysis.keys import key_chunks
    from magnetar.hashing.analysis.metrics import balance, count_owners
    from magnetar.hashing.analysis.schemes import build

    weights = parse_nodes(nodes)
    records = []
    first: Scheme | None = None
    for algorithm in _expand(algorithms, weights):
        scheme = build(algorithm, weights, replicas=replicas, vnode_count=vnode_count)
        first = first or scheme
        with progress(keys, algorithm) as report:
            chunks = _reporting(key_chunks(key_format, keys), report)
            figures = balance(count_owners(scheme, chunks, keys), weights)
        records.append(
            {
                "algorithm": algorithm,
                "max_over_mean": figures.max_over_mean,
                "min_over_mean": figures.min_over_mean,
                "stddev": figures.stddev,
                "counts": figures.counts,
            }
        )
    if plot is not None and first is not None:
        _plot_schemes(plot, [first])
    if as_json:
        print_json(records if len(records) > 1 else records[0])
        return
    emit([{name: value for name, value in record.items() if name != "counts"} for record in records], as_json=False)
    for record in records:
        counts = record["counts"]
        assert isinstance(counts, dict)
        rows = [{"node": node, "keys": count, "share": count / keys} for node, count in counts.items()]
        emit(rows, as_json=False, title=str(record["algorithm"]))


@ring_group.command("explain")
@click.argument("key")
@_common
@click.option(
    "--algorithm", default="ketama", show_default=True, type=click.Choice(ALGORITHMS[:-1]), help="Hashing scheme."
)
@click.option("--count", type=click.IntRange(1), help="Also show the first N distinct nodes (ketama, crc32).")
@output_options
@hashing_errors
def explain_command(
    key: str, nodes: str, replicas: int | None, vnode_count: int, algorithm: str, count: int | None, as_json: bool
) -> None:
    """Show where KEY lies: its hash, its neighbours, its owner, and who takes over if the owner leaves."""
    from magnetar.hashing.analysis.explain import explain
    from magnetar.hashing.analysis.schemes import build

    scheme = build(algorithm, parse_nodes(nodes), replicas=replicas, vnode_count=vnode_count)
    emit_record({"key": key, "algorithm": algorithm, **explain(scheme, key, count)}, as_json=as_json)


def _expand(algorithms: tuple[str, ...], *memberships: dict[str, float]) -> list[str]:
    """`all` as every algorithm that knows the weights given."""
    if "all" not in algorithms:
        return list(dict.fromkeys(algorithms))
    weighted = any(weight != 1 for nodes in memberships for weight in nodes.values())
    return ["ketama", "crc32", "vnodes"] if weighted else list(ALGORITHMS[:-1])


def _reporting(chunks: Any, report: Any) -> Any:
    done = 0
    for chunk in chunks:
        yield chunk
        done += len(chunk)
        if report is not None:
            report(done)


def _plot_schemes(path: Path, schemes: list[Scheme]) -> None:
    from magnetar.cli.hashing.plots import plot_rings

    panels = []
    for scheme in schemes:
        arcs = scheme.arcs()
        if arcs is None:
            raise click.UsageError(f"{scheme.algorithm} has no circle to draw: plot another algorithm")
        starts, owners, size = arcs
        stops = [*starts[1:].tolist(), size]
        names = [scheme.members[owner] if owner >= 0 else "nobody" for owner in owners.tolist()]
        title = f"{scheme.algorithm}: {len(scheme.members)} nodes"
        panels.append((title, list(zip(starts.tolist(), stops, names, strict=True)), size))
    plot_rings(path, panels)
