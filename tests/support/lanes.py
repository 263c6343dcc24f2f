"""Which worker of pytest-xdist runs which test: files side by side, what measures time alone, Spark's files in one worker.

`Lanes` is a scheduler as xdist's hook `pytest_xdist_make_scheduler` wants it. In this order:

1. Tests marked `alone` run in one worker, one after the other, while all other workers wait: nothing of ours disturbs what they measure.
2. The files of each worker's lane. Those with a test that needs the `spark` fixture belong to the first worker (of every four), which has
   the one SparkSession: starting one takes five seconds and a gigabyte. All others belong to whoever is free. A file stays together: its
   server is started once.
3. A worker whose lane is empty helps with the other one.

The longest files come first (`LONGEST`), then folders with long ones (`FOLDERS`); short ones fill the gaps at the end.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

ALONE = "alone"
SPARK = "spark"
WORKERS_OF_ONE_SPARK = 4
FOLDERS = ("tests/e2e/", "tests/simulation/", "tests/integration/", "tests/contract/", "tests/property/")
"""The longest files first; what is not named comes last."""

LONGEST = (
    "tests/integration/pipeline/test_epochs.py",
    "tests/integration/pipeline/test_crashes.py",
    "tests/integration/pipeline/test_views_against_batch.py",
    "tests/integration/pipeline/test_damage.py",
    "tests/integration/pipeline/test_late_rows.py",
    "tests/integration/pipeline/test_faults.py",
    "tests/e2e/test_demo.py",
    "tests/e2e/test_full_disk.py",
    "tests/docs/test_documents_run.py",
    "tests/integration/admin/test_openapi_fuzz.py",
)
"""Above half a minute each, by CPU time; begun last, one of them would run by itself for as long."""

Kinds = Mapping[str, Sequence[str]]
"""ALONE: ids of tests; SPARK: ids of tests that use the session."""


class Worker(Protocol):
    """What is used of xdist's WorkerController."""

    @property
    def shutting_down(self) -> bool: ...

    def send_runtest_some(self, indices: Sequence[int]) -> None: ...

    def shutdown(self) -> None: ...


@dataclass(frozen=True)
class Plan:
    """Numbers of tests in the collection. `spark` and `files` hold whole files, in the order in which they are given out."""

    alone: list[int] = field(default_factory=list)
    spark: deque[list[int]] = field(default_factory=deque)
    files: deque[list[int]] = field(default_factory=deque)


def plan(ids: Sequence[str], kinds: Kinds) -> Plan:
    """Each test once."""
    alone = set(kinds.get(ALONE, ()))
    with_spark = {file_of(name) for name in kinds.get(SPARK, ())}
    made = Plan([number for number, name in enumerate(ids) if name in alone])
    rest = [number for number, name in enumerate(ids) if name not in alone]
    files = [list(group) for _, group in itertools.groupby(rest, key=lambda number: file_of(ids[number]))]
    for numbers in sorted(files, key=lambda numbers: rank(ids[numbers[0]])):
        (made.spark if file_of(ids[numbers[0]]) in with_spark else made.files).append(numbers)
    return made


def file_of(name: str) -> str:
    return name.partition("::")[0]


def rank(name: str) -> int:
    """Less comes earlier."""
    first = (*LONGEST, *FOLDERS)
    return next((number for number, begin in enumerate(first) if name.startswith(begin)), len(first))


class Lanes:
    """xdist's `Scheduling`. A worker starts a test only when it knows the next one, so each is kept at two until there are no more.

    `kinds` is asked when all workers have collected. `differ(worker, text)` is told when two did not collect the same.
    """

    def __init__(self, workers: int, kinds: Callable[[], Kinds], differ: Callable[[Any, str], None]) -> None:
        self._workers = workers
        self._kinds = kinds
        self._differ = differ
        self._collections: dict[Any, list[str]] = {}
        self._pending: dict[Any, list[int]] = {}
        self._ids: list[str] | None = None
        self._plan = Plan()
        self._alone: set[int] = set()
        """Given out and not done."""

    @property
    def nodes(self) -> list[Any]:
        return list(self._pending)

    @property
    def collection_is_completed(self) -> bool:
        return self._ids is not None or len(self._collections) >= self._workers

    @property
    def tests_finished(self) -> bool:
        """What is left is with workers that have been told to end."""
        return self.collection_is_completed and not self._left and all(len(each) < 2 for each in self._pending.values())

    @property
    def has_pending(self) -> bool:
        return self._left or any(self._pending.values())

    @property
    def _left(self) -> bool:
        return bool(self._plan.alone or self._plan.spark or self._plan.files)

    def add_node(self, node: Worker) -> None:
        self._pending[node] = []

    def add_node_collection(self, node: Worker, collection: Sequence[str]) -> None:
        self._collections[node] = list(collection)

    def schedule(self) -> None:
        """Called when all have collected, and again for each worker that replaces a lost one."""
        ids = self._ids if self._ids is not None else next(iter(self._collections.values()))
        for node, found in self._collections.items():
            if found != ids:
                odd = sorted(set(ids).symmetric_difference(found))
                self._differ(node, f"workers collected different tests, or in another order: {odd[:10]}")
                return
        if self._ids is None:
            self._ids = ids
            self._plan = plan(ids, self._kinds())
        self._give()

    def mark_test_complete(self, node: Worker, item_index: int, duration: float = 0) -> None:
        self._pending[node].remove(item_index)
        self._alone.discard(item_index)
        self._give()

    def remove_node(self, node: Worker) -> str | None:
        """The test in which it was lost, if any; the others it had go to another worker."""
        pending = self._pending.pop(node)
        self._collections.pop(node, None)
        if not pending or self._ids is None:
            return None
        lost, *again = pending
        self._plan.alone.extend(number for number in again if number in self._alone)
        self._plan.files.extendleft(_by_file(self._ids, (number for number in again if number not in self._alone)))
        self._alone.difference_update(pending)
        self._give()
        return self._ids[lost]

    def mark_test_pending(self, item: str) -> None:
        raise NotImplementedError("a test that took its worker with it is not run again")

    def remove_pending_tests_from_node(self, node: Worker, indices: Sequence[int]) -> None:
        raise NotImplementedError("nothing is taken back from a worker")

    def _give(self) -> None:
        """The next file to each worker that has no test behind the one it runs, or the word that there is none."""
        nodes = [node for node in self._pending if not node.shutting_down]
        if self._plan.alone and not self._alone and nodes:
            self._send(nodes[-1], self._plan.alone)
            self._alone.update(self._plan.alone)
            self._plan.alone.clear()
        for number, node in enumerate(nodes):
            if self._alone.isdisjoint(self._pending[node]) and self._alone:
                continue  # it waits until they are done
            while len(self._pending[node]) < 2 and (numbers := self._next(number)):
                self._send(node, numbers)
            if not self._left:
                node.shutdown()

    def _next(self, number: int) -> list[int] | None:
        lanes = (self._plan.spark, self._plan.files)
        mine = lanes if number % WORKERS_OF_ONE_SPARK == 0 else lanes[::-1]
        return next((lane.popleft() for lane in mine if lane), None)

    def _send(self, node: Worker, numbers: Sequence[int]) -> None:
        self._pending[node].extend(numbers)
        node.send_runtest_some(list(numbers))


def _by_file(ids: Sequence[str], numbers: Iterable[int]) -> list[list[int]]:
    return [list(group) for _, group in itertools.groupby(numbers, key=lambda number: file_of(ids[number]))]
