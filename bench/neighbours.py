#!/usr/bin/env python3
"""What a client notices of a neighbour that floods: publish latency with and without, for one kind of flood after the other.

  neighbours.py [--kinds KIND ...] [--seconds S] [--rounds N] [--topics N] [--dir DIR] [--json] [--check]

Each kind has a server of its own (`magnetar standalone`, tokens and authorization on). One process publishes 200 messages a second as
one role and measures each from the moment at which it was due, so that a server that stands still counts in full; another floods as a role
of another tenant (floods.py). Both are measured in turns (alone, flooded, alone, flooded ...): the figures are medians over the rounds.
The verdict is the ratio of the two p99. `--check` exits with 1 when a goal is missed. See bench/README.md.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import http.client
import json
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import floods
import servers

HERE = Path(__file__).resolve().parent
RATE = 200
GOAL, GOAL_PUBLISH = 3.0, 5.0
PARTITIONS = 1000
LEAD_S = 1.0
"""The flood runs so long before and after the measurement beside it."""

TOPICS_FIRST = ("lists", "http-lists", "patterns", "unread", "stats")
"""Kinds that need the many topics; they are partitions, made by one request for each thousand."""


class Site:
    """A server with two tenants, `steady` and `flood`, each with a role of the same name and a namespace `ns`."""

    def __init__(self, folder: Path) -> None:
        self._secret = secrets.token_bytes(32)
        folder.mkdir(parents=True)
        key = folder / "secret.key"
        key.write_bytes(self._secret)
        self.server = servers.ours(
            folder,
            "authenticationEnabled=true",
            "authenticationProviders=token",
            f"tokenSecretKey=file://{key}",
            "authorizationEnabled=true",
            "superUserRoles=root",
        )
        for tenant in ("steady", "flood"):
            self._call("PUT", f"tenants/{tenant}", {"adminRoles": [], "allowedClusters": ["standalone"]})
            self._call("PUT", f"namespaces/{tenant}/ns")
            self._call("POST", f"namespaces/{tenant}/ns/permissions/{tenant}", ["produce", "consume"])

    def token(self, role: str) -> str:
        """A JSON web token for an hour."""
        claims = {"sub": role, "exp": int(time.time()) + 3600}
        signed = b".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "HS256"}, claims))
        return (signed + b"." + _base64(hmac.digest(self._secret, signed, hashlib.sha256))).decode()

    def _call(self, method: str, path: str, body: object = None) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.http_port, timeout=120)
        headers = {"Authorization": f"Bearer {self.token('root')}", "Content-Type": "application/json"}
        connection.request(method, f"/admin/v2/{path}", "" if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {said[:300]!r}")

    def create_topics(self, count: int) -> None:
        """In the namespace of the flood."""
        for number, first in enumerate(range(0, count, PARTITIONS)):
            self._call("PUT", f"persistent/flood/ns/many-{number}/partitions", min(PARTITIONS, count - first))

    def probe(self, seconds: float) -> dict[str, float]:
        """p50_ms, p99_ms and max_ms of `RATE` publishes a second."""
        words = ["latency", "--port", self.server.port, "--token", self.token("steady"), "--rate", RATE]
        words += ["--messages", int(RATE * seconds), "--topic", "persistent://steady/ns/probe"]
        done = subprocess.run(
            [sys.executable, HERE / "loadgen.py", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=60 + 20 * seconds,
        )
        if done.returncode != 0:
            raise SystemExit(f"the client that is measured failed: {done.stderr.strip()}")
        found: dict[str, float] = json.loads(done.stdout)
        return found


class Flood:
    """The other process."""

    def __init__(self, site: Site, kind: str, topics: int) -> None:
        words = [kind, "--port", site.server.port, "--http-port", site.server.http_port, "--namespace", "flood/ns"]
        words += ["--token", site.token("flood"), "--topics", topics]
        self._process = subprocess.Popen(
            [sys.executable, HERE / "floods.py", *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._say() != "ready":
            raise SystemExit(f"the flood {kind} did not start")

    def _say(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def begin(self, seconds: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, float]:
        """Waits for the end of the flood: per_s."""
        found: dict[str, float] = json.loads(self._say())
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def measure(folder: Path, kind: str, args: argparse.Namespace) -> dict[str, object]:
    """One kind against a server of its own."""
    site = Site(folder / kind)
    running: list[Flood] = []
    try:
        if kind in TOPICS_FIRST:
            site.create_topics(args.topics)
        if kind != "idle":  # its subscriptions are there from its start on
            running.append(Flood(site, kind, args.topics))
        site.probe(1)  # the topic is there, everything is imported
        alone, flooded, rates = [], [], []
        if kind == "idle":
            alone = [site.probe(args.seconds) for _ in range(args.rounds)]
            running.append(Flood(site, kind, args.topics))
        for _ in range(args.rounds):
            if kind != "idle":
                alone.append(site.probe(args.seconds))
            running[0].begin(args.seconds + 2 * LEAD_S)
            time.sleep(LEAD_S)
            flooded.append(site.probe(args.seconds))
            rates.append(running[0].end())
        memory = site.server.memory_mib
    finally:
        for flood in running:
            flood.close()
        site.server.stop()
    return row(kind, alone, flooded, rates) | {"memory_mib": round(memory)}


def row(
    kind: str, alone: list[dict[str, float]], flooded: list[dict[str, float]], rates: list[dict[str, float]]
) -> dict[str, object]:
    """Medians over the rounds, in milliseconds."""

    def median(runs: list[dict[str, float]], name: str) -> float:
        return round(statistics.median(run[name] for run in runs), 3)

    goal = GOAL_PUBLISH if kind == "publish" else GOAL
    ratio = median(flooded, "p99_ms") / median(alone, "p99_ms")
    return {
        "kind": kind,
        "alone_p50_ms": median(alone, "p50_ms"),
        "alone_p99_ms": median(alone, "p99_ms"),
        "flooded_p50_ms": median(flooded, "p50_ms"),
        "flooded_p99_ms": median(flooded, "p99_ms"),
        "flooded_max_ms": max(run["max_ms"] for run in flooded),
        "per_s": median(rates, "per_s"),
        "failures": sum(run["failures"] for run in rates),
        "ratio": round(ratio, 2),
        "goal": goal,
        "met": ratio <= goal,
    }


HEADINGS = ("flood", "a second", "p50 alone", "p50", "p99 alone", "p99", "longest", "ratio", "memory")
COLUMNS = ("per_s", "alone_p50_ms", "flooded_p50_ms", "alone_p99_ms", "flooded_p99_ms", "flooded_max_ms", "ratio")


def line(found: dict[str, object]) -> str:
    """A row of the table; milliseconds, MiB."""
    numbers = "".join(f"{found[name]:>11,.2f}" for name in COLUMNS)
    verdict = "met" if found["met"] else f"MISSED (<= {found['goal']:.0f})"
    return f"{found['kind']:<11}{numbers}{found['memory_mib']:>11,}  {verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=floods.KINDS, default=list(floods.KINDS))
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements with and without the flood, in turns")
    parser.add_argument("--topics", type=int, default=10_000, help="topics that are listed; subscriptions that idle")
    parser.add_argument(
        "--dir", type=Path, default=HERE.parent, help="where the servers keep their data; never a memory filesystem"
    )
    parser.add_argument("--json", action="store_true", help="the results as one line of JSON")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=args.dir))
    out = sys.stderr if args.json else sys.stdout
    print(f"{HEADINGS[0]:<11}" + "".join(f"{heading:>11}" for heading in HEADINGS[1:]), file=out)
    found = []
    try:
        for kind in args.kinds:
            found.append(measure(folder, kind, args))
            print(line(found[-1]), flush=True, file=out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        print(json.dumps(found))
    return 1 if args.check and not all(each["met"] for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
