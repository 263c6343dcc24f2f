"""Reports of a run of seeds, for people and as JSON."""

from __future__ import annotations

import platform
import time
from typing import Any

from magnetar.testing.sim.run import Result


class Totals:
    """Sums over seeds. `what`: of what the runs write, `ledgers` or `topics`."""

    def __init__(self, what: str = "ledgers", option: str = "--brokers") -> None:
        """`option`: of the command, for runs that write topics."""
        self.what = what
        self.option = f" {option}" if what == "topics" else ""
        self._started = time.perf_counter()
        self.seeds = 0
        self.failed: dict[str, list[str]] = {}
        self.virtual_s = 0.0
        self.callbacks = 0
        self.acked = 0
        self.ledgers = 0
        self.counts: dict[str, int] = {}

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.virtual_s += result.virtual_s
        self.callbacks += result.callbacks
        self.acked += result.acked
        self.ledgers += result.ledgers
        for name, count in result.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        for checker in dict.fromkeys(violation.checker for violation in result.violations):
            self.failed.setdefault(checker, []).append(result.seed)

    @property
    def failed_count(self) -> int:
        return len({seed for seeds in self.failed.values() for seed in seeds})

    @property
    def faults(self) -> int:
        return sum(count for name, count in self.counts.items() if name.startswith(("fault", "aimed")))

    def as_dict(self) -> dict[str, Any]:
        real_s = time.perf_counter() - self._started
        return {
            "seeds": self.seeds,
            "failed": self.failed,
            "realSeconds": round(real_s, 1),
            "seedsPerSecond": round(self.seeds / real_s, 2),
            "virtualSeconds": round(self.virtual_s, 1),
            "virtualHoursPerMinute": round(self.virtual_s / 60 / real_s, 2),
            "callbacks": self.callbacks,
            self.what: self.ledgers,
            "ackedEntries": self.acked,
            "faults": self.faults,
            "counts": dict(sorted(self.counts.items())),
        }


def totals_report(totals: Totals) -> str:
    """A page."""
    data = totals.as_dict()
    lines = [
        f"{data['seeds']} seeds in {data['realSeconds']} s ({data['seedsPerSecond']} per second), "
        f"{data['virtualSeconds']} virtual seconds ({data['virtualHoursPerMinute']} hours a minute), {data['callbacks']} callbacks",
        f"{data[totals.what]} {totals.what}, {data['ackedEntries']} acknowledged entries, {data['faults']} faults",
        "",
        *(f"  {name:32} {count}" for name, count in data["counts"].items()),
        "",
    ]
    if totals.failed:
        lines += [f"FAILED {checker}: seeds {', '.join(seeds)}" for checker, seeds in totals.failed.items()]
        lines.append(f"replay one with: make sim ARGS='--seed N{totals.option}'")
    else:
        lines.append("all checks passed")
    return "\n".join(lines)


def seed_report(result: Result, tail: int = 200) -> str:
    """Everything that is needed to work on a seed."""
    lines = [
        f"seed {result.seed}: {'FAILED' if result.failed else 'passed'}, trace {result.digest}, "
        f"Python {platform.python_version()}",
        f"{result.virtual_s:.1f} virtual seconds in {result.real_s:.2f} s, {result.callbacks} callbacks, "
        f"{result.acked} acknowledged entries",
        result.scenario.text(),
    ]
    if tail:
        lines += ["counts:", *(f"  {name}: {count}" for name, count in result.counts.items())]
        lines += ["the end of the trace:", *(f"  {line}" for line in result.tail[-tail:])]
    lines += [f"BROKEN at {one.time_s:.6f}: {one.checker}: {one.text}" for one in result.violations]
    return "\n".join(lines)
