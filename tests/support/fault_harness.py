"""Faults at points of an epoch: `python -m tests.support.fault_harness` runs every victim at every point and prints the table.

Each case: new rows, a run in which somebody is killed, what is dead started again, another run, and the comparison: views against a
recomputation over all rows, the sink's topic as changes of which each has to fit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pulsar

from magnetar.testing.server import ServerProcess
from tests.support.fault_points import POINTS, VICTIMS
from tests.support.pipelines import GROUPS, OVER_GROUPS, grouped, numbered, over_grouped, send, source, view_rows
from tests.support.topics import drain

ROWS: Final = 120
KEYS: Final = 40
RUN_TIMEOUT_S: Final = 240
ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """`ended`: how the run did in which somebody was killed, `ended_s` how long it took, `recovered_s` how long the next one."""

    point: str
    victim: str
    ended: str
    ended_s: float
    recovered_s: float


class FaultHarness:
    """A pipeline with two views and a sink, its server and its driver, for one case after another."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "p"
        self._fired = directory / "fired"
        self._file = directory / "p.sql"
        self._log = directory / "driver.log"
        self._driver: subprocess.Popen[str] | None = None
        self._sent: list[dict[str, Any]] = []
        self.server = ServerProcess(
            directory / "server",
            # topics stay although a run of Spark may take longer than the minute after which unused ones are deleted
            {"brokerDeduplicationEnabled": "true", "brokerDeleteInactiveTopicsEnabled": "false"},
        )

    def __enter__(self) -> FaultHarness:
        self.server.start()
        self._client = pulsar.Client(self.server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._client.subscribe(
            "out", "kept"
        ).close()  # what nobody subscribes to may be deleted when the broker starts again
        where = f"connector = 'pulsar', service.url = '{self.server.service_url}', topic = 'out'"
        sink = f"CREATE SINK out FROM v WITH ({where}) FORMAT DEBEZIUM ENCODE JSON;"
        self._file.write_text(source(self.server.service_url, "in") + GROUPS + OVER_GROUPS + sink)
        return self

    def __exit__(self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self._end_driver()
        self._client.close()
        self.server.close()

    def case(self, point: str, victim: str) -> Outcome:
        """AssertionError when a row or a change is missing, doubled or wrong afterwards."""
        rows = numbered(len(self._sent), len(self._sent) + ROWS, KEYS)
        self._sent.extend(rows)
        send(self._client, "in", rows)
        self._fired.unlink(missing_ok=True)
        shot = {"point": point, "victim": victim, "broker": self.server.pid, "fired": str(self._fired)}
        began_s = time.monotonic()
        ended = self._run(shot)
        shot_s = time.monotonic() - began_s
        assert self._fired.exists(), f"nobody came to the point {point}: {ended}"
        if victim in ("jvm", "driver"):
            self._end_driver()
        began_s = time.monotonic()
        again = self._run({})
        assert again == "went on", f"{point}, {victim}: {again}\n{self._log.read_text()[-4000:]}"
        recovered_s = time.monotonic() - began_s
        self.check()
        return Outcome(point, victim, ended, shot_s, recovered_s)

    def check(self) -> None:
        assert view_rows(self.directory) == grouped(self._sent)
        assert view_rows(self.directory, "w") == over_grouped(self._sent)
        sunk = replayed(self._client, "out")
        wanted = grouped(self._sent)
        assert sunk == wanted, f"the sink's topic lacks {sorted(wanted - sunk)}, has instead {sorted(sunk - wanted)}"

    def _run(self, wanted: dict[str, Any]) -> str:
        """How it ended; a broker that dies meanwhile is started again."""
        if self._driver is None:
            command = [sys.executable, "-m", "tests.support.fault_driver", str(self.directory), str(self._file)]
            path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
            with self._log.open("a") as log:
                self._driver = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": path},
                )
        driver = self._driver
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write(json.dumps(wanted) + "\n")
        driver.stdin.flush()
        lines: list[str] = []
        reading = threading.Thread(target=lambda: lines.append(driver.stdout.readline()), daemon=True)
        reading.start()
        until_s = time.monotonic() + RUN_TIMEOUT_S
        while reading.is_alive():
            reading.join(0.1)
            if not self.server.running:
                self.server.wait()
                self.server.start()
            assert time.monotonic() < until_s, f"{wanted}: the driver hangs\n{self._log.read_text()[-4000:]}"
        if not self.server.running:  # it died with the last thing that the driver did
            self.server.wait()
            self.server.start()
        if not lines[0]:
            return "killed"
        answer = json.loads(lines[0])
        return "went on" if answer["error"] is None else f"{answer['error']}: {answer['text']}"

    def _end_driver(self) -> None:
        if self._driver is not None:
            self._driver.kill()
            self._driver.communicate()
            self._driver = None


def replayed(client: pulsar.Client, topic: str) -> set[tuple[Any, ...]]:
    """The table that the changes make; each must fit what was there, so none may be missing or come twice."""
    rows: dict[str, dict[str, Any]] = {}
    for message in drain(client, topic):
        change = json.loads(message.data())
        change = change.get("payload", change)
        if change["before"] is not None:
            assert rows.pop(change["before"]["k"], None) == change["before"]
        if change["after"] is not None:
            assert change["after"]["k"] not in rows
            rows[change["after"]["k"]] = change["after"]
    return {(row["k"], row["c"], row["s"]) for row in rows.values()}


def table(outcomes: Iterable[Outcome]) -> str:
    """In Markdown: a line a point, a column a victim."""
    cells: dict[str, dict[str, str]] = {}
    for each in outcomes:
        kind = each.ended.partition(":")[0]
        text = kind if kind in ("went on", "killed") else f"`{kind}`"
        cells.setdefault(each.point, {})[each.victim] = f"{text} {each.ended_s:.1f} s, then {each.recovered_s:.1f} s"
    lines = ["| point | " + " | ".join(VICTIMS) + " |", "|---" * (len(VICTIMS) + 1) + "|"]
    lines += [f"| {point} | " + " | ".join(of.get(v, "") for v in VICTIMS) + " |" for point, of in cells.items()]
    return "\n".join(lines)


def main() -> None:
    """`fault_harness [POINT,VICTIM ...]`, without them all. A case that fails gets a harness of its own for those after it."""
    left = [(point, victim) for victim in VICTIMS for point in POINTS]
    if sys.argv[1:]:
        left = [(point, victim) for point, victim in (case.split(",") for case in sys.argv[1:])]
    outcomes: list[Outcome] = []
    failed = 0
    while left:
        with tempfile.TemporaryDirectory() as directory, FaultHarness(Path(directory)) as harness:
            while left:
                point, victim = left.pop(0)
                try:
                    outcomes.append(harness.case(point, victim))
                except AssertionError as error:
                    failed += 1
                    outcomes.append(Outcome(point, victim, f"WRONG: {error}", 0.0, 0.0))
                    break
                finally:
                    print(outcomes[-1], file=sys.stderr, flush=True)
    print(table(outcomes))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
