"""Histories of `transactions` and `register`, judged by Jepsen's own checkers: Elle and Knossos.

  ELLE=CLASSPATH python -m bench.faults.elle FILE.jsonl ...

CLASSPATH is a Java class path with Clojure, Elle and Knossos and what they need; neither is on Maven Central. FILE.jsonl is what
`python -m bench.faults --histories DIR` writes. Exit code 1: something is found that the promises exclude; 2: nothing could be checked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.faults.history import Event, read, written

SCRIPT = Path(__file__).parent / "check.clj"
HEAP = "-Xmx2g"
EXCLUDED = frozenset(
    (
        "G1a",
        "G1b",
        "dirty-update",
        "duplicate-elements",
        "incompatible-order",
        "internal",
        "lost-update",
        "nonlinearizable",
    )
)
"""What the promises exclude, by Elle's names. Cycles are not among them: messages of open transactions lie in each topic in the order in
which they came, so two transactions may be stored in opposite orders in two topics (G0, and what follows from it), in Pulsar as here."""


UNDECIDED = frozenset(("unknown", "empty-transaction-graph"))
"""Knossos has searched for five minutes; or no transaction that was read has committed."""


def kind_of(events: list[Event]) -> str:
    """`txn` or `register`. Raises ValueError for another workload's history."""
    names = {event["f"] for event in events}
    if "txn" in names:
        return "txn"
    if {"read", "write"} <= names:
        return "register"
    raise ValueError("it is a history of neither transactions nor register")


def operations(events: list[Event], kind: str) -> list[Event]:
    """What clients did, numbered anew."""
    kept = [event for event in events if event["f"] in (("txn",) if kind == "txn" else ("read", "write"))]
    keys = ("time", "process", "type", "f", "value")
    return [{"index": number, **{key: event[key] for key in keys}} for number, event in enumerate(kept)]


def verdicts(histories: Sequence[tuple[str, list[Event]]], class_path: str) -> list[dict[str, int]]:
    """By history, its kind first: how many cases of which anomaly. Raises RuntimeError with what Java says."""
    with tempfile.TemporaryDirectory(prefix="magnetar-elle-") as name:
        words: list[str] = []
        for number, (kind, events) in enumerate(histories):
            path = Path(name) / f"{number}.edn"
            path.write_text("".join(f"{each}\n" for each in map(written, operations(events, kind))))
            words += [kind, str(path)]
        command = ["java", "-Djava.awt.headless=true", HEAP, "-cp", class_path, "clojure.main", str(SCRIPT), *words]
        done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(lines) != len(histories):
        raise RuntimeError(f"Elle did not get to a verdict:\n{(done.stdout + done.stderr)[-3000:]}")
    return [json.loads(line) for line in lines]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults.elle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl")
    args = parser.parse_args(words)
    class_path = os.environ.get("ELLE", "")
    if not class_path:
        parser.error("ELLE is not set: it takes a Java class path with Clojure, Elle and Knossos")
    histories = []
    for path in args.files:
        try:
            events = read(path)
            histories.append((kind_of(events), events))
        except (OSError, ValueError) as error:
            parser.error(f"{path}: {error}")
    try:
        said_of_each = verdicts(histories, class_path)
    except RuntimeError as error:
        parser.error(str(error))
    broken = undecided = False
    for path, (kind, events), found in zip(args.files, histories, said_of_each, strict=True):
        bad = sorted(EXCLUDED & found.keys())
        besides = sorted(found.keys() - EXCLUDED - UNDECIDED)
        broken = broken or bool(bad)
        count = sum(event["type"] == "ok" for event in operations(events, kind))
        said = ", ".join(f"{found[name]} {name}" for name in bad) or "nothing broken"
        if UNDECIDED & found.keys():
            said, undecided = f"no verdict ({', '.join(sorted(UNDECIDED & found.keys()))})", True
        note = f"; not excluded: {', '.join(f'{found[name]} {name}' for name in besides)}" if besides else ""
        print(f"{path.name}: {said} in {count:,} operations by {'Elle' if kind == 'txn' else 'Knossos'}{note}")
    return 1 if broken else 2 * undecided


if __name__ == "__main__":
    sys.exit(main())
