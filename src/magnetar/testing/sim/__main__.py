"""`python -m magnetar.testing.sim`: many seeds with a report, or one seed in full."""

from __future__ import annotations

import json
import logging
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from magnetar.testing.sim.balance.run import run_balance_seed
from magnetar.testing.sim.geo.run import run_geo_seed
from magnetar.testing.sim.messaging.run import run_messaging_seed
from magnetar.testing.sim.messaging.scenario import transaction_scenario
from magnetar.testing.sim.report import Totals, seed_report, totals_report
from magnetar.testing.sim.run import Result, run_seed
from magnetar.testing.sim.scalable.run import run_scalable_seed


@click.command()
@click.option("--seeds", default=100, show_default=True, help="How many seeds to run.")
@click.option("--first", default=0, show_default=True, help="The first one; the others follow.")
@click.option("--seed", default=None, help="Run this seed alone and print everything about it.")
@click.option("--brokers", is_flag=True, help="Run brokers, producers and consumers on top instead of ledger clients.")
@click.option(
    "--transactions", is_flag=True, help="As --brokers, with workers that consume and publish in transactions."
)
@click.option("--scalable", is_flag=True, help="Run a scalable topic whose segments are split and merged all the time.")
@click.option("--balance", is_flag=True, help="As --brokers, with a load manager that moves and splits bundles.")
@click.option(
    "--geo", is_flag=True, help="Run several clusters that replicate a topic and its subscriptions to each other."
)
@click.option("--watch", is_flag=True, help="With --seed: print every event as it happens.")
@click.option("--jobs", default=1, show_default=True, help="Processes to use.")
@click.option("--keep-going", is_flag=True, help="Run all seeds, whatever fails.")
@click.option("--json", "as_json", is_flag=True, help="Print the totals as JSON.")
def main(
    seeds: int,
    first: int,
    seed: str | None,
    brokers: bool,
    transactions: bool,
    scalable: bool,
    balance: bool,
    geo: bool,
    watch: bool,
    jobs: int,
    keep_going: bool,
    as_json: bool,
) -> None:
    """Simulate clusters, one for each seed, and check what they promise. The exit code is 1 if a check failed."""
    logging.disable(logging.CRITICAL)
    if seed is not None:
        if geo:
            result = run_geo_seed(seed, watch=watch)
        elif scalable:
            result = run_scalable_seed(seed, watch=watch)
        elif balance:
            result = run_balance_seed(seed, watch=watch)
        elif transactions:
            result = run_messaging_seed(seed, transaction_scenario(seed), watch=watch)
        else:
            result = run_messaging_seed(seed, watch=watch) if brokers else run_seed(seed, watch=watch)
        click.echo(seed_report(result))
        sys.exit(1 if result.failed else 0)
    chosen = (
        ("--geo", geo),
        ("--scalable", scalable),
        ("--balance", balance),
        ("--transactions", transactions),
        ("--brokers", brokers),
    )
    option = next((name for name, is_chosen in chosen if is_chosen), "")
    totals = Totals("topics" if option else "ledgers", option)
    work = {
        "--geo": run_geo_quietly,
        "--scalable": run_scalable_quietly,
        "--balance": run_balance_quietly,
        "--transactions": run_transactions_quietly,
        "--brokers": run_messaging_quietly,
        "": run_quietly,
    }[option]
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    pool = ProcessPoolExecutor(jobs) if jobs > 1 else None
    interrupted = False
    with pool or nullcontext(), Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("seeds", total=seeds)
        names = [str(number) for number in range(first, first + seeds)]
        try:
            for result in pool.map(work, names, chunksize=4) if pool is not None else map(work, names):
                totals.add(result)
                progress.update(bar, advance=1, description=f"seeds ({totals.failed_count} failed)")
                if result.failed:
                    click.echo(seed_report(result, tail=0), err=True)
                    if not keep_going and totals.failed_count >= FAILURES_MAX:
                        break
        except KeyboardInterrupt:
            interrupted = True
        if pool is not None:
            pool.shutdown(cancel_futures=True)
    click.echo(json.dumps(totals.as_dict()) if as_json else totals_report(totals))
    sys.exit(INTERRUPTED if interrupted else 1 if totals.failed_count else 0)


INTERRUPTED = 130
"""Exit code after Ctrl-C; the totals of the seeds until then are printed all the same."""

FAILURES_MAX = 5
"""Failing seeds after which the rest is left out, unless --keep-going."""


def run_quietly(seed: str) -> Result:
    """Runs a seed in a worker process."""
    logging.disable(logging.CRITICAL)
    return run_seed(seed)


def run_messaging_quietly(seed: str) -> Result:
    """The same for a seed with brokers."""
    logging.disable(logging.CRITICAL)
    return run_messaging_seed(seed)


def run_transactions_quietly(seed: str) -> Result:
    """The same for a seed with transactions."""
    logging.disable(logging.CRITICAL)
    return run_messaging_seed(seed, transaction_scenario(seed))


def run_scalable_quietly(seed: str) -> Result:
    """The same for a seed with a scalable topic."""
    logging.disable(logging.CRITICAL)
    return run_scalable_seed(seed)


def run_geo_quietly(seed: str) -> Result:
    """The same for a seed with several clusters."""
    logging.disable(logging.CRITICAL)
    return run_geo_seed(seed)


def run_balance_quietly(seed: str) -> Result:
    """The same for a seed with a load manager."""
    logging.disable(logging.CRITICAL)
    return run_balance_seed(seed)


if __name__ == "__main__":
    main()
