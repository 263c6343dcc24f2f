"""Pipelines for tests: statements over a topic of `k` and `n`, rows of views read back from the state tables, recomputation."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar

from magnetar.base.clock import SystemClock
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore
from magnetar.pipeline.state.reader import read_arrow
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.pipeline.views.scan.stored_views import find_table
from tests.support.topics import produce
from tests.support.waiting import wait_until

GROUPS = "CREATE MATERIALIZED VIEW v AS SELECT k, count(*) AS c, sum(n) AS s FROM src GROUP BY k;"
OVER_GROUPS = "CREATE MATERIALIZED VIEW w AS SELECT c, count(*) AS ks, sum(s) AS total FROM v GROUP BY c;"


def source(url: str, topic: str, name: str = "src", **options: object) -> str:
    """`k VARCHAR, n BIGINT` as JSON, from the beginning unless told otherwise."""
    given = {"service.url": url, "topic": topic, "startingOffsets": "earliest"}
    given |= {key.replace("_", "."): str(value) for key, value in options.items()}
    text = ", ".join(f"{key} = '{value}'" for key, value in given.items())
    return f"CREATE SOURCE {name} (k VARCHAR, n BIGINT) WITH (connector = 'pulsar', {text}) FORMAT PLAIN ENCODE JSON;"


def send(client: pulsar.Client, topic: str, rows: Iterable[Mapping[str, Any]]) -> None:
    produce(client, topic, [json.dumps(row).encode() for row in rows])


def numbered(first: int, last: int, keys: int = 7) -> list[dict[str, Any]]:
    return [{"k": f"key-{number % keys}", "n": number} for number in range(first, last)]


def latest(directory: Path | str) -> Manifest:
    manifest = ManifestStore(StateFiles(str(directory)), SystemClock()).latest()
    assert manifest is not None
    return manifest


def view_rows(directory: Path | str, view: str = "v") -> set[tuple[Any, ...]]:
    """What the newest manifest says the view holds."""
    state = find_table(latest(directory), view)
    found = read_arrow(StateFiles(str(directory)), state, range(state.table.vnode_count)).to_pylist()
    rows = [tuple(row[name] for name in state.table.schema.names) for row in found]
    assert len(set(rows)) == len(rows)
    return set(rows)


def grouped(rows: Iterable[Mapping[str, Any]]) -> set[tuple[Any, int, int]]:
    """What GROUPS has to give."""
    found: dict[Any, list[int]] = {}
    for row in rows:
        group = found.setdefault(row["k"], [0, 0])
        group[0] += 1
        group[1] += row["n"]
    return {(key, count, total) for key, (count, total) in found.items()}


def over_grouped(rows: Iterable[Mapping[str, Any]]) -> set[tuple[int, int, int]]:
    """What OVER_GROUPS has to give."""
    found: dict[int, list[int]] = {}
    for _, count, total in grouped(rows):
        group = found.setdefault(count, [0, 0])
        group[0] += 1
        group[1] += total
    return {(count, keys, total) for count, (keys, total) in found.items()}


@contextmanager
def running(pipeline: Pipeline) -> Iterator[None]:
    """In a thread, from its first manifest on until the block ends."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            pipeline.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    store = ManifestStore(pipeline.files, SystemClock())

    def begun() -> bool:
        manifest = store.latest()
        return bool(failed) or (manifest is not None and "catalog" in manifest.views)

    try:
        wait_until(begun, 240)
        yield
    finally:
        pipeline.request_stop()
        thread.join(120)
        assert not failed, failed
