#!/usr/bin/env python3
"""Real servers under faults, and what they promised held against what clients saw.

  python -m bench.faults                                       every workload for 20 s, with all faults
  python -m bench.faults --workload acks --faults kill pause --seconds 60 --seed 7
  python -m bench.faults --target cluster                      two brokers, three bookies; cluster-zookeeper: with Apache ZooKeeper
  MAGNETAR_OLD=DIR python -m bench.faults --target upgrade     a cluster of an older checkout becomes today's, process by process
  python -m bench.faults --workload geo                        two servers that replicate to each other, and failovers between them
  PULSAR_JARS=DIR python -m bench.faults --target pulsar       the same against Apache Pulsar's standalone
  python -m bench.faults --planted all                         deliberate bugs, each of which has to be found
  python -m bench.faults --check HISTORY.jsonl --workload set  a history that was written before

Exit code 1: a promise was broken, or a planted bug was not found. Histories go to --histories DIR, as JSON lines and EDN.
The fault `disk` mounts a tmpfs, which takes root. bench/faults/linearizable checks histories of `register` by Porcupine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.faults.checkers import CHECKERS, SHOWN_MAX
from bench.faults.failovers import geo
from bench.faults.history import History, read
from bench.faults.planted import PLANTED
from bench.faults.schedule import FAULTS, Nemesis
from bench.faults.targets import ApachePulsar, Cluster, Magnetar, Regions, RollingUpgrade, Target
from bench.faults.views import views
from bench.faults.workloads import Run, acks, key_shared, pipelines, registers, repeats, sets, transactions

TARGETS = ("magnetar", "pulsar", "cluster", "cluster-zookeeper", "upgrade")
ATTEMPTS_OF_A_BUG = 5

WORKLOADS: dict[str, Callable[[Run], Callable[[], None]]] = {
    "set": sets,
    "dedup": repeats,
    "key-shared": key_shared,
    "acks": acks,
    "register": registers,
    "transactions": transactions,
    "pipeline": pipelines,
    "geo": geo,
    "view": views,
}
"""By name: starts its threads; what it answers is called after the last fault."""

REGIONS = ("geo",)
"""Workloads of two `magnetar standalone` that replicate to each other."""

SETTINGS: dict[str, dict[str, object]] = {
    "geo": {"replicatedSubscriptionsSnapshotFrequencyMillis": 250},
    "dedup": {"brokerDeduplicationEnabled": "true", "brokerDeduplicationEntriesInterval": 500},
    "transactions": {"transactionCoordinatorEnabled": "true"},
    "pipeline": {"transactionCoordinatorEnabled": "true"},
}


def open_target(kind: str, folder: Path, workload: str, planted: str, faults: Sequence[str]) -> Target:
    settings = SETTINGS.get(workload, {}) | dict(PLANTED[planted].settings if planted else {})
    if workload in REGIONS:
        return Regions(folder, settings, planted)
    if kind == "magnetar":
        return Magnetar(folder, settings, planted, "disk" in faults)
    if kind == "pulsar":
        return ApachePulsar(folder, settings, planted, "disk" in faults)
    if kind == "upgrade":
        return RollingUpgrade(folder, settings, planted)
    return Cluster(folder, settings, planted, 1 if kind.endswith("zookeeper") else 0)


ESSENTIAL = {
    "set": "add",
    "dedup": "add",
    "key-shared": "deliver",
    "acks": "ack",
    "register": "write",
    "transactions": "txn",
    "pipeline": "pass",
    "geo": "deliver",
    "view": "view",
}
"""What has to have succeeded at least once, or a run says nothing. Of transactions, one that appends."""


def did_something(workload: str, history: History) -> bool:
    return any(
        event["type"] == "ok"
        and event["f"] == ESSENTIAL[workload]
        and (event["f"] != "txn" or event["value"][0][0] == "append")
        for event in history.events
    )


def run_once(args: argparse.Namespace, workload: str, faults: Sequence[str], seed: str, planted: str) -> dict[str, Any]:
    """One workload on a new server, from its first message to the checker's verdict."""
    folder = Path(tempfile.mkdtemp(prefix="magnetar-faults-", dir=args.dir))
    target = run = None
    began_s = time.monotonic()
    try:
        print(f"{args.target} {workload} seed {seed} {planted}".rstrip(), file=sys.stderr, flush=True)
        target = open_target(args.target, folder / "t", workload, planted, faults)
        faults = tuple(fault for fault in faults if fault in target.can)
        history = History()
        run = Run(target, history, seed, args.gap)
        end = WORKLOADS[workload](run)
        nemesis = Nemesis(target, history, tuple(faults), args.fault_gap, seed)
        nemesis.start()
        time.sleep(args.seconds)
        nemesis.finish()
        target.settle()
        time.sleep(1.0)
        run.finish()
        end()
        name = f"{args.target}-{workload}-{seed}" + (f"-{planted.replace(' ', '-')}" if planted else "")
        if args.histories is not None:
            history.write(args.histories, name)
        if not did_something(workload, history):
            raise RuntimeError(f"no '{ESSENTIAL[workload]}' of {workload} succeeded, so this run says nothing")
        problems = CHECKERS[workload](history.events)
        return {
            "target": args.target,
            "workload": workload,
            "seed": seed,
            "planted": planted,
            "seconds": round(time.monotonic() - began_s, 1),
            "faulted_seconds": args.seconds,
            "operations": sum(event["type"] == "ok" for event in history.events),
            "faults": {name: count for name, count in nemesis.counts.items() if count},
            "problems": problems,
        }
    except BaseException:
        if target is not None:
            print(target.log()[-2000:], file=sys.stderr)
        raise
    finally:
        if run is not None:
            run.closing.close()
        if target is not None:
            target.close()
        shutil.rmtree(folder, ignore_errors=True)


def show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result), flush=True)
        return
    faults = ", ".join(f"{count} {name}" for name, count in result["faults"].items()) or "no faults"
    verdict = f"{len(result['problems'])} problems" if result["problems"] else "nothing broken"
    planted = f" with '{result['planted']}'" if result["planted"] else ""
    print(
        f"{result['target']} {result['workload']} seed {result['seed']}{planted}: {verdict}; "
        f"{result['operations']:,} operations in {result['faulted_seconds']} s under {faults}",
        flush=True,
    )
    for problem in result["problems"][:SHOWN_MAX]:
        print(f"  {problem}", flush=True)


def run_planted(args: argparse.Namespace) -> int:
    names = list(PLANTED) if args.planted == "all" else [args.planted]
    if set(names) - set(PLANTED):
        raise SystemExit(f"No bug is called '{args.planted}'. These are: {'; '.join(PLANTED)}.")
    missed = 0
    for name in names:
        bug = PLANTED[name]
        for number in range(ATTEMPTS_OF_A_BUG):
            result = run_once(args, bug.workload, bug.faults, str(args.seed + number), name)
            show(result, args.json)
            if result["problems"]:
                break
        else:
            missed += 1
            print(f"not found in {ATTEMPTS_OF_A_BUG} runs: {name}", file=sys.stderr)
    print(f"{len(names) - missed} of {len(names)} planted bugs found", file=sys.stderr)
    return 1 if missed else 0


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=TARGETS, default="magnetar")
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=[])
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS), help="those that the target knows")
    parser.add_argument("--seconds", type=float, default=20.0, help="under faults, for each workload and seed")
    parser.add_argument("--fault-gap", type=float, default=3.0, help="mean seconds between two faults")
    parser.add_argument("--gap", type=float, default=0.02, help="seconds between two bursts of a client")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="so many seeds")
    parser.add_argument("--planted", default="", metavar="NAME", help="a deliberate bug, or 'all'")
    parser.add_argument("--histories", type=Path, help="where histories are written")
    parser.add_argument(
        "--dir", type=Path, help="where servers keep their data (default: the system's temporary directory)"
    )
    parser.add_argument("--check", type=Path, metavar="FILE", help="check a history and run nothing")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each run")
    args = parser.parse_args(words)
    here = [name for name in WORKLOADS if args.target == "magnetar" or name not in REGIONS]
    args.workload = args.workload or here
    elsewhere = sorted(set(args.workload) - set(here))
    if elsewhere:
        parser.error(f"{', '.join(elsewhere)} runs on two servers of its own, so leave --target out")
    if args.check is not None:
        if len(args.workload) != 1:
            parser.error("--check needs --workload with the workload that wrote the history")
        try:
            events = read(args.check)
        except (OSError, ValueError) as error:
            parser.error(f"--check {args.check} is not a history as --histories writes it (.jsonl): {error}")
        problems = CHECKERS[args.workload[0]](events)
        print(json.dumps(problems) if args.json else "\n".join(problems) or "nothing broken")
        return 1 if problems else 0
    if args.planted:
        return run_planted(args)
    totals: Counter[str] = Counter()
    for number in range(args.rounds):
        for workload in args.workload:
            try:
                result = run_once(args, workload, args.faults, str(args.seed + number), "")
            except Exception:
                traceback.print_exc()
                totals["runs that did not end"] += 1
                continue
            show(result, args.json)
            totals["runs"] += 1
            totals["operations"] += result["operations"]
            totals["faults"] += sum(result["faults"].values())
            totals["problems"] += len(result["problems"])
    print(", ".join(f"{count:,} {name}" for name, count in totals.items()), file=sys.stderr)
    return 1 if totals["problems"] or totals["runs that did not end"] else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # its servers are stopped, as with Ctrl-C
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; all servers are stopped", file=sys.stderr)
        sys.exit(130)
