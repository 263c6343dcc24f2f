"""`magnetar loadbalance`: what the load manager sees and would do, and how it does on paper."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import click

from magnetar.broker.load_balance.simulation import LOAD_MANAGER, MODULO, RANDOM, RING, Sample, Scenario, simulate
from magnetar.broker.settings.load_balance import PLACEMENTS, SHEDDERS, LoadBalanceSettings
from magnetar.cli.admin.common import show_document, shown
from magnetar.cli.admin.http import connected
from magnetar.cli.errors import CommandError
from magnetar.cli.hashing.plots import pyplot, save
from magnetar.cli.hashing.support import hashing_errors, plot_option
from magnetar.cli.output import emit, output_options, print_json, progress_bar

DEFAULT = Scenario()
DEFAULT_CONFIG = LoadBalanceSettings()


@click.group("loadbalance")
def load_balance_group() -> None:
    """Show the load of brokers, the leader, and which bundles would move and why."""


@load_balance_group.command("leader")
@shown
def leader_command(admin_url: str, as_json: bool) -> None:
    """Show the leader broker, which decides for all."""
    with connected(admin_url) as admin:
        show_document(admin.brokers.leader(), as_json)


@load_balance_group.command("brokers")
@shown
def brokers_command(admin_url: str, as_json: bool) -> None:
    """List the last load report of each broker: usage in percent (of its scarcest resource), messages and bytes per second."""
    with connected(admin_url) as admin:
        show_document(admin.load_balance.brokers(), as_json, "brokers")


@load_balance_group.command("plan")
@shown
def plan_command(admin_url: str, as_json: bool) -> None:
    """Show which bundles the leader would split or move now, and which it would leave where they are, with reasons. Nothing is changed."""
    with connected(admin_url) as admin:
        plan = admin.load_balance.plan()
    if as_json:
        show_document(plan, True)
        return
    rows: list[dict[str, object]] = [
        {"what": "split", "bundle": each.bundle, "from": each.broker, "to": each.algorithm, "why": each.reason}
        for each in plan.splits
    ]
    rows += [
        {"what": "move", "bundle": each.bundle, "from": each.source, "to": each.destination, "why": each.reason}
        for each in plan.moves
    ]
    rows += [{"what": "stays", "bundle": each.what, "from": "", "to": "", "why": each.reason} for each in plan.held]
    emit(rows, as_json=False, title=f"plan of {plan.leader}")
    if not plan.splits and not plan.moves:
        click.echo(f"nothing to do: the most loaded broker is at {plan.peak_before:.2f} times the mean")
    else:
        click.echo(
            f"most loaded broker over mean: {plan.peak_before:.2f} now, {plan.peak_after:.2f} after; "
            f"spread {plan.spread_before:.2f}, {plan.spread_after:.2f}"
        )


@load_balance_group.command("simulate")
@click.option(
    "--brokers", type=click.IntRange(1, 10_000), default=DEFAULT.brokers, show_default=True, help="Number of brokers."
)
@click.option(
    "--topics", type=click.IntRange(1, 20_000_000), default=DEFAULT.topics, show_default=True, help="Number of topics."
)
@click.option(
    "--bundles-per-broker",
    type=click.IntRange(1, 1024),
    default=DEFAULT.bundles_per_broker,
    show_default=True,
    help="Bundles per broker at the start.",
)
@click.option(
    "--steps", type=click.IntRange(1, 10_000), default=DEFAULT.steps, show_default=True, help="Decision intervals."
)
@click.option(
    "--namespaces",
    type=click.IntRange(1, 10_000),
    default=DEFAULT.namespaces,
    show_default=True,
    help="Number of namespaces; each has its own busy hours.",
)
@click.option(
    "--changed",
    "changed_percent",
    type=click.FloatRange(0, 90),
    default=100 * DEFAULT.changed_share,
    show_default=True,
    help="Percentage of brokers that are lost and later replaced.",
)
@click.option(
    "--load",
    "mean_percent",
    type=click.FloatRange(1, 100),
    default=DEFAULT.mean_percent,
    show_default=True,
    help="Mean usage of the brokers in percent.",
)
@click.option(
    "--shedder",
    type=click.Choice(SHEDDERS),
    default=DEFAULT_CONFIG.shedder,
    show_default=True,
    help="Shedding strategy, as in loadBalancerLoadSheddingStrategy.",
)
@click.option(
    "--placement",
    type=click.Choice(PLACEMENTS),
    default=DEFAULT_CONFIG.placement,
    show_default=True,
    help="Placement strategy, as in loadBalancerLoadPlacementStrategy.",
)
@click.option("--seed", type=int, default=DEFAULT.seed, show_default=True, help="Seed of the random numbers.")
@plot_option
@output_options
@hashing_errors
def simulate_command(
    brokers: int,
    topics: int,
    bundles_per_broker: int,
    steps: int,
    namespaces: int,
    changed_percent: float,
    mean_percent: float,
    shedder: str,
    placement: str,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Simulate the load manager on generated loads, compared with random, modulo and consistent-hash placement.

    After a quarter of the steps brokers are lost, after half new ones join, after three quarters some topics become hot. --json
    prints every step.
    """
    scenario = Scenario(
        brokers,
        topics,
        bundles_per_broker,
        steps,
        min(namespaces, brokers * bundles_per_broker),
        changed_percent / 100,
        mean_percent,
        seed,
    )
    config = LoadBalanceSettings(
        load_balancer_load_shedding_strategy=shedder, load_balancer_load_placement_strategy=placement
    )
    started_s = time.monotonic()
    try:
        with progress_bar("simulating", steps) as advance:
            samples = simulate(scenario, config, lambda done: advance(done, None))
    except ImportError as error:
        raise CommandError(f"this needs numpy: pip install 'magnetar[hashing]' ({error})") from error
    elapsed_s = time.monotonic() - started_s
    if plot is not None:
        plot_samples(plot, samples, f"{brokers:,} brokers, {topics:,} topics, {shedder}")
    if as_json:
        records = {name: [dataclasses.asdict(sample) for sample in each] for name, each in samples.items()}
        print_json({"scenario": dataclasses.asdict(scenario), "seconds": round(elapsed_s, 1), "placements": records})
        return
    emit(
        _rows(samples),
        as_json=False,
        title=f"{brokers:,} brokers, {topics:,} topics, {steps} steps in {elapsed_s:.1f} s",
    )


def _rows(samples: dict[str, list[Sample]]) -> list[dict[str, object]]:
    ring_moves = sum(sample.moved for sample in samples[RING])
    return [
        {
            "placement": name,
            "peak_mean": sum(sample.peak for sample in each) / len(each),
            "peak_last": each[-1].peak,
            "spread_mean": sum(sample.spread for sample in each) / len(each),
            "overloaded_%": 100 * sum(sample.overloaded for sample in each) / len(each),
            "moved_%": 100 * sum(sample.moved for sample in each),
            "forced_%": 100 * sum(sample.forced for sample in each),
            "moved_vs_ring": sum(sample.moved for sample in each) / ring_moves if ring_moves else 0.0,
            "bundles": each[-1].bundles,
        }
        for name, each in samples.items()
    ]


COLOURS = {LOAD_MANAGER: "tab:blue", RANDOM: "tab:gray", MODULO: "tab:orange", RING: "tab:green"}


def plot_samples(path: Path, samples: Mapping[str, Sequence[Sample]], title: str) -> None:
    """Three panels over time. MissingExtraError without matplotlib."""
    plt = pyplot()
    figure, panels = plt.subplots(3, 1, figsize=(9, 9.5), sharex=True, layout="constrained")
    drawn: tuple[tuple[str, Callable[[Sequence[Sample]], list[float]]], ...] = (
        ("most loaded broker over the mean", lambda each: [sample.peak for sample in each]),
        ("brokers above 85 % of capacity, %", lambda each: [100 * sample.overloaded for sample in each]),
        ("bundles moved so far, % (log)", lambda each: list(accumulate(100 * sample.moved for sample in each))),
    )
    for axes, (label, values) in zip(panels, drawn, strict=True):
        for name, each in samples.items():
            steps = [sample.step for sample in each]
            axes.plot(
                steps, values(each), label=name, color=COLOURS[name], linewidth=2 if name == LOAD_MANAGER else 1.3
            )
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        for sample in next(iter(samples.values())):
            if sample.event:
                axes.axvline(sample.step, color="black", linewidth=0.7, linestyle=":")
    for sample in next(iter(samples.values())):
        if sample.event:
            panels[0].annotate(
                sample.event,
                (sample.step, 1),
                xycoords=("data", "axes fraction"),
                xytext=(3, -10),
                textcoords="offset points",
                fontsize=8,
            )
    panels[0].set_ylim(bottom=1)
    panels[2].set_ylim(bottom=0)
    panels[2].set_yscale("symlog", linthresh=0.1)
    panels[2].set_xlabel("step (one decision interval)")
    figure.suptitle(title)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    save(plt, figure, path)
