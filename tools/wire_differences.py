"""Sends the same requests to this server and to an Apache Pulsar and shows where the answers differ.

    python tools/wire_differences.py --pulsar 127.0.0.1:26650,http://127.0.0.1:28080 [--only NAME]

Both must allow everybody everything; use a fresh server or at least one whose namespaces are deleted afterwards: each run works in a
namespace of its own. The answers are compared field by field, presence included, after what no two servers share has been replaced by
a name: ledger ids in the order in which they appear, addresses, times, versions, generated names. `tests/compat/wire-differences.allow`
lists those that are meant, with their reasons; a difference that is not there, and a line there that no longer differs, make it fail.
Lines that begin with `text` are about answers of which only the words differ, which no client looks at; they may be patterns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.compat.wire.conversation import Conversation, Server  # noqa: E402
from tests.compat.wire.scenarios import SCENARIOS, Scenario  # noqa: E402

ALLOWED = ROOT / "tests" / "compat" / "wire-differences.allow"
START_S = 30.0
"""Time for the server to be ready."""


def conversation(scenario: Scenario, server: Server, run: str) -> list[tuple[str, list[Any]]]:
    namespace = f"public/{scenario.__name__.replace('_', '-')}-{run}"
    talk = Conversation(server, namespace)
    talk.admin("PUT", f"namespaces/{namespace}", {"bundles": {"numBundles": 1}})
    try:
        scenario(talk)
    finally:
        talk.close()
    return talk.log


def differences(
    name: str, ours: list[tuple[str, list[Any]]], theirs: list[tuple[str, list[Any]]]
) -> Iterator[tuple[str, Any, Any]]:
    """Key, our frames, their frames."""
    for place, ((about, mine), (_, other)) in enumerate(zip(ours, theirs, strict=False)):
        if mine != other:
            yield f"{name}/{place} {about}", mine, other
    if len(ours) != len(theirs):
        yield f"{name} ends early", len(ours), len(theirs)


def _without_texts(frames: Any) -> Any:
    """Frames without what only people read."""
    if isinstance(frames, dict):
        return {
            key: _without_texts(value)
            for key, value in frames.items()
            if key not in ("message", "errorMessage", "reason")
        }
    return [_without_texts(item) for item in frames] if isinstance(frames, list) else frames


def allowed(kind: str = "") -> dict[str, str]:
    """Reason by key: lines `scenario/number  reason`, or with a kind in front those of the kind."""
    lines = [line.split() for line in ALLOWED.read_text().splitlines() if line.strip() and not line.startswith("#")]
    ours = [words[len(kind.split()) :] for words in lines if (words[0] == "text") == bool(kind)]
    return {words[0]: " ".join(words[1:]) for words in ours}


@contextmanager
def own_server(port: int, http: int) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as directory:
        command = [
            sys.executable,
            "-m",
            "magnetar",
            "standalone",
            "--data-dir",
            directory,
            "--port",
            str(port),
            "--http-port",
            str(http),
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_S
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{http}/admin/v2/brokers/ready", timeout=1).close()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
            yield Server(port, f"http://127.0.0.1:{http}")
        finally:
            process.terminate()
            process.wait(30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pulsar", required=True, help="HOST:PORT,HTTP-URL of an Apache Pulsar on this machine")
    parser.add_argument("--only", default="", help="scenarios whose names contain this")
    arguments = parser.parse_args()
    broker, url = arguments.pulsar.split(",")
    pulsar = Server(int(broker.rpartition(":")[2]), url.rstrip("/"))
    run = f"{time.monotonic_ns():x}"
    reasons, patterns, seen, wrong, asked, texts = allowed(), allowed("text"), set(), 0, 0, 0
    with own_server(36650, 38080) as magnetar:
        for scenario in SCENARIOS:
            name = scenario.__name__
            if arguments.only not in name:
                continue
            ours, theirs = conversation(scenario, magnetar, run), conversation(scenario, pulsar, run)
            asked += len(theirs)
            for key, mine, other in differences(name, ours, theirs):
                short = key.split()[0]
                seen.add(short)
                if short in reasons:
                    continue
                pattern = next((each for each in patterns if fnmatch(short, each)), "")
                if pattern and _without_texts(mine) == _without_texts(other):
                    seen.add(pattern)
                    texts += 1
                    continue
                wrong += 1
                print(f"== {key}\n   magnetar: {json.dumps(mine)[:1500]}\n   pulsar:   {json.dumps(other)[:1500]}")
    unneeded = sorted({*reasons, *patterns} - seen) if not arguments.only else []
    for key in unneeded:
        print(f"== {key} no longer differs: remove it from {ALLOWED.name}")
    print(
        f"{asked} requests, {wrong} differences that are not allowed, {len(seen & set(reasons))} that are, {texts} in texts alone"
    )
    return 1 if wrong or unneeded else 0


if __name__ == "__main__":
    sys.exit(main())
