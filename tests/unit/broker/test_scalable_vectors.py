"""Places that clusters tell each other about a scalable topic, and the snapshots that its controller keeps."""

from __future__ import annotations

from itertools import pairwise

import pytest

from magnetar.broker.scalable.layout import HASH_MAX, SegmentLayout
from magnetar.broker.scalable.snapshots import (
    PLACES_MAX,
    Place,
    Snapshot,
    SnapshotsTaken,
    passed,
    translated,
    vector_as_json,
    vector_from_json,
    vector_of,
)


def test_a_vector_survives_its_json() -> None:
    vector = vector_of(SegmentLayout.create(3, 0), {0: (-1, 0), 1: (5, 9), 2: (2**62, 2**40)})
    assert vector_from_json(vector_as_json(vector)) == vector


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        "places",
        [1],
        [[0, 1, 0, 0]],
        [[0, 1, 0, 0, 0, 0]],
        [[0, 1, 0, 0, "0"]],
        [[0, 1, 0, 0, True]],
        [[0, 1, 0, 0, 0.0]],
        [[2, 1, 0, 0, 0]],
        [[-1, 1, 0, 0, 0]],
        [[0, HASH_MAX + 1, 0, 0, 0]],
        [[0, 1, -1, 0, 0]],
        [[0, 1, 2**63, 0, 0]],
        [[0, 1, 0, -2, 0]],
        [[0, 1, 0, 0, -1]],
        [[0, 1, 0, 0, 2**63]],
        [[0, 4, 0, 0, 0], [4, 5, 1, 0, 0]],
        [[4, 5, 0, 0, 0], [0, 3, 1, 0, 0]],
        [[each, each, 0, 0, 0] for each in range(PLACES_MAX + 1)],
    ],
)
def test_what_is_not_a_vector_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match=r"expected|places|place|ids"):
        vector_from_json(document)


def snapshot(number: int) -> Snapshot:
    layout = SegmentLayout.create(1, 0)
    return Snapshot(vector_of(layout, {0: (0, number)}), {"b": vector_of(layout, {0: (7, number)})})


def test_snapshots_are_thinned_out_over_all_that_a_subscription_lags_behind() -> None:
    taken = SnapshotsTaken()
    for number in range(100):
        taken.add(snapshot(number), 8)
    kept = [each.here[0].position[1] for each in taken.all]
    assert len(kept) == 8
    assert kept[0] == 0
    assert kept[-1] == 99
    assert max(second - first for first, second in pairwise(kept)) < 50


def test_what_every_subscription_has_passed_is_forgotten() -> None:
    taken = SnapshotsTaken()
    for number in range(3):
        taken.add(snapshot(number), 8)
    taken.forget_before(taken.all[1])
    assert [each.here[0].position[1] for each in taken.all] == [1, 2]
    taken.forget_before(snapshot(9))
    assert len(taken.all) == 2


def test_neighbouring_hashes_with_the_same_place_are_told_as_one() -> None:
    here = SegmentLayout.create(4, 0)
    there = SegmentLayout.create(1, 0)
    ends = {each.id: (0, 5) for each in here.active}
    step = Snapshot(vector_of(here, ends), {"b": vector_of(there, {0: (3, 8)})})
    done = passed(step.here, here, {0: (0, 5), 1: (0, 9), 2: (0, 4), 3: (0, 5)}, ())
    middle, last = here.segments[1].end, here.segments[3].start
    assert translated([(step, done)], "b") == (Place(0, middle, 0, (3, 8)), Place(last, HASH_MAX, 0, (3, 8)))
