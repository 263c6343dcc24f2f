"""Traces of simulated runs, checked by TLC against the models of this folder.

  TLA2TOOLS=JAR python -m tests.models                      1,000 seeds each of ledgers, brokers, and clusters that replicate
  TLA2TOOLS=JAR python -m tests.models --seeds 50 --first 7
  TLA2TOOLS=JAR python -m tests.models --planted            the simulator's deliberate bugs, by the scripts that catch them
  TLA2TOOLS=JAR python -m tests.models --models             the models themselves, all behaviours of small ones

Exit code 1: a trace was refused, or an error was found in a model.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from magnetar.testing.sim.mutations import MUTATIONS, mutated
from tests.models.checker import first_refused_event, jar, model_is_right, refused
from tests.models.recording import Trace, bundles_of, ledgers_of, ledgers_of_script
from tests.models.replication import clusters_of
from tests.simulation.test_mutations import CAUGHT_BY_SCRIPT

BATCH = 50
"""Seeds in one run of TLC."""


def ledgers(seed: str) -> list[tuple[str, Trace]]:
    return [(f"seed {seed} ledger {number}", trace) for number, trace in ledgers_of(seed).items()]


def brokers(seed: str) -> list[tuple[str, Trace]]:
    return [(f"seed {seed} --brokers", bundles_of(seed))]


def clusters(seed: str) -> list[tuple[str, Trace]]:
    return [(f"seed {seed} of clusters", clusters_of(seed))]


RECORDED = {
    "ledgers": ("LedgerTrace", ledgers),
    "brokers": ("BundlesTrace", brokers),
    "clusters": ("ReplicatedSubscriptionsTrace", clusters),
}


def check_seeds(
    module: str, record: Callable[[str], list[tuple[str, Trace]]], first: int, seeds: int, folder: Path, tlc: Path
) -> bool:
    traces_total = events_total = refused_total = 0
    for begin in range(first, first + seeds, BATCH):
        named = [each for seed in range(begin, min(begin + BATCH, first + seeds)) for each in record(str(seed))]
        traces = [trace for _, trace in named if trace]
        names = [name for name, trace in named if trace]
        wrong = refused(module, traces, folder, tlc)
        traces_total += len(traces)
        events_total += sum(map(len, traces))
        refused_total += len(wrong)
        for number in wrong:
            at = first_refused_event(module, traces[number], folder, tlc)
            print(f"{names[number]}: the model {module} does not allow event {at}: {traces[number][at]}", flush=True)
    print(
        f"{module}: {seeds} seeds, {traces_total:,} traces, {events_total:,} events, {refused_total} refused",
        flush=True,
    )
    return not refused_total


def check_planted(folder: Path, tlc: Path) -> None:
    """Shows which of the deliberate bugs these models find. They leave out crashes, lengths and what readers learn."""
    found = 0
    for name in MUTATIONS:
        with mutated(name):
            traces = ledgers_of_script(CAUGHT_BY_SCRIPT[name])
        wrong = refused("LedgerTrace", traces, folder, tlc)
        found += bool(wrong)
        at = first_refused_event("LedgerTrace", traces[wrong[0]], folder, tlc) if wrong else -1
        print(f"{name}: {f'refused at {traces[wrong[0]][at]}' if wrong else 'accepted'}", flush=True)
    print(f"{found} of {len(MUTATIONS)} refused")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--of", nargs="*", choices=RECORDED, default=list(RECORDED), help="only these")
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--models", action="store_true")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)  # simulated processes fail all the time
    tlc = jar()
    if tlc is None:
        parser.error("TLC is needed: set TLA2TOOLS to the path of tla2tools.jar, which is part of each release of TLA+")
    with tempfile.TemporaryDirectory(prefix="magnetar-models-") as name:
        folder = Path(name)
        if args.models:
            for module in ("BundlesModel", "LedgerModel", "ReplicatedSubscriptionsModel"):
                found = [
                    line for line in model_is_right(module, folder, tlc).splitlines() if "states generated" in line
                ]
                print(f"{module}: {found[-1]}", flush=True)
            return 0
        if args.planted:
            check_planted(folder, tlc)
            return 0
        checked = [check_seeds(*RECORDED[name], args.first, args.seeds, folder, tlc) for name in args.of]
        return 0 if all(checked) else 1


if __name__ == "__main__":
    sys.exit(main())
