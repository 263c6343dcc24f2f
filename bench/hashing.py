#!/usr/bin/env python3
"""Hashing by the million, measured in one run: `HashRing.owners` and `vnodes` against what they replace and against bare numpy.

  hashing.py [--keys N] [--rounds N] [--json] [--check]

Contenders take turns chunk by chunk, and CPU time counts. Vectorised ones run `--rounds` times, the median counts; loops in Python
take seconds and run once.
`--check` exits with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import sys
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from uhashring import HashRing as UHashRing

from magnetar.hashing.analysis.keys import key_chunks
from magnetar.hashing.ring import HashRing
from magnetar.hashing.vectorized.md5 import ketama_hashes
from magnetar.hashing.vectorized.vnode import vnodes
from magnetar.hashing.vnode import vnode, vnode_function

NODES = [f"192.168.0.{number}:11212" for number in range(241, 246)]
KEY_FORMAT = "10.10.10.10_{}"
OWNERS_OVER_UHASHRING = 20.0
OWNERS_OVER_BARE_NUMPY = 0.7
VNODES_OVER_PYTHON = 100.0
SLOW_LOOP_DIVISOR = 10
"""The slowest loop runs over a tenth of the keys; its time is multiplied."""


def timed(work: Callable[[], Any]) -> float:
    """Seconds of CPU: all contenders are single-threaded, and other work on the machine is not theirs."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def owners_lines(total: int, rounds: int) -> list[dict[str, Any]]:
    ours, theirs = HashRing(NODES), UHashRing(nodes=NODES, hash_fn="ketama")
    points = np.array([point for point, _ in ours.points()], np.uint32)
    index = {node: position for position, node in enumerate(ours.nodes)}
    point_owners = np.array([index[node] for _, node in ours.points()], np.int32)

    def bare(keys: Any) -> Any:
        found = np.searchsorted(points, ketama_hashes(keys), side="right")
        found[found == len(points)] = 0
        return point_owners[found]

    def loop(texts: list[str]) -> None:
        get = theirs.get_node
        for text in texts:
            get(text)

    best = limit = slow = 0.0
    for keys in key_chunks(KEY_FORMAT, total):
        # Chunk by chunk in turns, so that whatever else happens on the machine happens to all three.
        pairs = [(timed(partial(ours.owners, keys)), timed(partial(bare, keys))) for _ in range(rounds)]
        best += statistics.median(mine for mine, _ in pairs)
        limit += statistics.median(other for _, other in pairs)
        slow += timed(partial(loop, [key.decode() for key in keys.tolist()]))
    return [
        line("owners over uhashring", best, slow, total, OWNERS_OVER_UHASHRING),
        line("owners over hashing + searchsorted", best, limit, total, OWNERS_OVER_BARE_NUMPY),
    ]


def vnode_lines(total: int, rounds: int) -> list[dict[str, Any]]:
    keys = np.random.default_rng(1).integers(0, total, total)
    best = statistics.median(timed(lambda: vnodes([keys])) for _ in range(rounds))
    numbers = keys.tolist()
    few = numbers[: total // SLOW_LOOP_DIVISOR]
    general = timed(lambda: [vnode((key,), ("bigint",)) for key in few]) * SLOW_LOOP_DIVISOR
    prepared = vnode_function(("bigint",))
    fixed = timed(lambda: [prepared((key,)) for key in numbers])
    pack, crc32 = struct.Struct("<q").pack, zlib.crc32
    tight = timed(lambda: [crc32(pack(key)) % 256 for key in numbers])
    return [
        line("vnodes over a loop of vnode()", best, general, total, VNODES_OVER_PYTHON),
        line("vnodes over a loop of vnode_function()", best, fixed, total, None),
        line("vnodes over the tightest loop (crc32 of struct.pack)", best, tight, total, None),
    ]


def line(name: str, ours: float, other: float, total: int, target: float | None) -> dict[str, Any]:
    return {
        "name": name,
        "keys": total,
        "ours_ns_per_key": ours / total * 1e9,
        "other_ns_per_key": other / total * 1e9,
        "ratio": other / ours,
        "target": target,
        "met": target is None or other / ours >= target,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    lines = owners_lines(options.keys, options.rounds) + vnode_lines(options.keys, options.rounds)
    if options.json:
        print(json.dumps(lines))
    else:
        print(f"{'':54}{'ours':>10}{'other':>11}{'ratio':>9}{'target':>9}")
        for found in lines:
            target = "" if found["target"] is None else f">= {found['target']:g}"
            ours, other = found["ours_ns_per_key"], found["other_ns_per_key"]
            print(f"{found['name']:54}{ours:8.1f}ns{other:9.1f}ns{found['ratio']:9.2f}{target:>9}")
    return 1 if options.check and not all(found["met"] for found in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
