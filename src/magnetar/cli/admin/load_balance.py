"""`magnetar loadbalance`: what the load manager sees and would do, and how it does on paper."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import click

from magnetar.broker.load_balance.simulation import RING, Sample, Scenario, simulate
from magnetar.broker.settings.load_balance import PLACEMENTS, SHEDDERS, LoadBalanceSettings
from magnetar.cli.admin.common import common, show_document
from magnetar.cli.admin.http import connected
from magnetar.cli.errors import CommandError
from magnetar.cli.hashing.support import hashing_errors, plot_option
from magnetar.cli.output import emit, json_option, print_json, progress_bar

DEFAULT = Scenario()
DEFAULT_CONFIG = LoadBalanceSettings()


@click.group("loadbalance")
def load_balance_group() -> None:
    """Which broker serves what: loads, the leader, what would move and why."""


@load_balance_group.command("leader")
@common
def leader_command(admin_url: str, as_json: bool) -> None:
    """The broker that decides for all."""
    with connected(admin_url) as admin:
        show_document(admin.brokers.leader(), as_json)


@load_balance_group.command("brokers")
@common
def brokers_command(admin_url: str, as_json: bool) -> None:
    """What each broker last reported: usage in percent (the scarcest resource by its weight), messages and bytes a second."""
    with connected(admin_url) as admin:
        show_document(admin.load_balance.brokers(), as_json, "brokers")


@load_balance_group.command("plan")
@common
def plan_command(admin_url: str, as_json: bool) -> None:
    """What the leader would split and move now, and why; what should move but stays, and why. Nothing is done."""
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
@click.option("--brokers", type=click.IntRange(1, 10_000), default=DEFAULT.brokers, show_default=True, help="How many.")
@click.option(
    "--topics", type=click.IntRange(1, 20_000_000), default=DEFAULT.topics, show_default=True, help="How many."
)
@click.option(
    "--bundles-per-broker",
    type=click.IntRange(1, 1024),
    default=DEFAULT.bundles_per_broker,
    show_default=True,
    help="At the start.",
)
@click.option(
    "--steps", type=click.IntRange(1, 10_000), default=DEFAULT.steps, show_default=True, help="Decision intervals."
)
@click.option(
    "--namespaces",
    type=click.IntRange(1, 10_000),
    default=DEFAULT.namespaces,
    show_default=True,
    help="How many; each has its own busy hours.",
)
@click.option(
    "--changed",
    "changed_percent",
    type=click.FloatRange(0, 90),
    default=100 * DEFAULT.changed_share,
    show_default=True,
    help="Percent of the brokers that are lost, and later come anew.",
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
    help="loadBalancerLoadSheddingStrategy.",
)
@click.option(
    "--placement",
    type=click.Choice(PLACEMENTS),
    default=DEFAULT_CONFIG.placement,
    show_default=True,
    help="loadBalancerLoadPlacementStrategy.",
)
@click.option("--seed", type=int, default=DEFAULT.seed, show_default=True, help="Of the loads and of what is drawn.")
@plot_option
@json_option
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
    """The load manager on paper loads, against random, modulo and consistent-hash placement.

    A quarter of the steps in, brokers are lost; at half time new ones come; at three quarters some topics become hot. --json
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
        from magnetar.cli.admin.load_balance_plot import plot_samples

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
