"""Who runs what under pytest-xdist: each test once, what measures alone, Spark's files in one place, nobody idle while there is work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.lanes import ALONE, LONGEST, SPARK, Lanes

ROOT = Path(__file__).parents[2]

IDS = [
    *("tests/arch/test_a.py::test_0", "tests/arch/test_a.py::test_1"),
    *("tests/e2e/test_b.py::test_measures", "tests/e2e/test_b.py::test_0", "tests/e2e/test_b.py::test_1"),
    *(f"tests/integration/test_spark_{number}.py::test_{each}" for number in range(3) for each in range(2)),
    *(f"tests/unit/test_{number}.py::test_{each}" for number in range(3) for each in range(2)),
]
KINDS = {ALONE: [IDS[2]], SPARK: [name for name in IDS if "spark" in name]}


class FakeWorker:
    """As xdist's: a test is started when the next one is known, or that there is none."""

    def __init__(self) -> None:
        self.queue: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        assert not self.shutting_down
        self.queue.extend(indices)

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def may_run(self) -> bool:
        return len(self.queue) > (0 if self.shutting_down else 1)


def started(workers: int, ids: Sequence[str] = IDS) -> tuple[Lanes, list[FakeWorker], list[str]]:
    complaints: list[str] = []
    lanes = Lanes(workers, lambda: KINDS, lambda _worker, text: complaints.append(text))
    made = [FakeWorker() for _ in range(workers)]
    for worker in made:
        lanes.add_node(worker)
    for worker in made:
        assert not lanes.collection_is_completed
        lanes.add_node_collection(worker, ids)
    lanes.schedule()
    return lanes, made, complaints


def complete(lanes: Lanes, worker: FakeWorker) -> str:
    number = worker.queue.pop(0)
    lanes.mark_test_complete(worker, number)
    return IDS[number]


@given(workers=st.integers(1, 6), choices=st.lists(st.integers(0, 5), max_size=len(IDS)))
def test_every_test_runs_once_and_the_one_that_measures_while_nobody_else_does(
    workers: int, choices: list[int]
) -> None:
    lanes, made, _ = started(workers)
    ran: list[str] = []
    while not lanes.tests_finished or any(worker.queue for worker in made):
        able = [worker for worker in made if worker.may_run]
        assert able, "nobody can go on"
        if not ran:
            assert len(able) == 1, "what measures is alone"
        chosen = able[(choices.pop() if choices else 0) % len(able)]
        ran.append(complete(lanes, chosen))
    assert ran[0] == KINDS[ALONE][0]
    assert sorted(ran) == sorted(IDS)
    assert all(worker.shutting_down for worker in made)


def test_long_folders_come_first_and_spark_has_one_worker() -> None:
    lanes, (first, second), _ = started(2)
    assert [IDS[number] for number in second.queue[:3]] == [
        IDS[2],
        "tests/e2e/test_b.py::test_0",
        "tests/e2e/test_b.py::test_1",
    ]
    assert first.queue == []
    complete(lanes, second)
    assert [complete(lanes, first) for _ in range(6)] == KINDS[SPARK]
    assert all("spark" not in IDS[number] for number in second.queue)


def test_the_longest_files_are_there() -> None:
    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("done", range(4))
def test_what_a_lost_worker_had_is_done_by_another_but_for_the_test_it_died_in(done: int) -> None:
    lanes, (first, second), _ = started(2)
    ran = [complete(lanes, second) for _ in range(done)]
    died_in = IDS[second.queue[0]]
    assert lanes.remove_node(second) == died_in
    other = FakeWorker()
    lanes.add_node(other)
    lanes.add_node_collection(other, IDS)
    lanes.schedule()
    while any(worker.queue for worker in (first, other)):
        ran.append(complete(lanes, next(worker for worker in (first, other) if worker.may_run)))
    assert sorted([*ran, died_in]) == sorted(IDS)
    assert lanes.tests_finished


def test_different_collections_run_nothing() -> None:
    complaints: list[str] = []
    lanes = Lanes(2, lambda: KINDS, lambda _worker, text: complaints.append(text))
    one, two = FakeWorker(), FakeWorker()
    for worker, ids in ((one, IDS), (two, IDS[:-1])):
        lanes.add_node(worker)
        lanes.add_node_collection(worker, ids)
    lanes.schedule()
    assert "collected different tests" in complaints[0]
    assert IDS[-1] in complaints[0]
    assert one.queue == two.queue == []
    assert lanes.tests_finished
