"""How many clients may be connected at once."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.base.limits import OPEN_FILES_RESERVED
from magnetar.broker.connection.admission import ConnectionAdmission
from magnetar.processes.broker_config import connections_max


@given(
    total_max=st.integers(0, 5),
    per_address_max=st.integers(0, 3),
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=60),
)
def test_never_more_than_allowed_and_never_refused_without_reason(
    total_max: int, per_address_max: int, steps: list[tuple[bool, str]]
) -> None:
    admission = ConnectionAdmission(total_max, per_address_max)
    held: list[str] = []
    refused = 0
    for enters, address in steps:
        if enters:
            full = bool(total_max and len(held) >= total_max)
            full = full or bool(per_address_max and held.count(address) >= per_address_max)
            assert bool(admission.enter(address)) == full
            refused += full
            if not full:
                held.append(address)
        elif address in held:
            held.remove(address)
            admission.leave(address)
        admission.validate()
    assert admission.refused_total == refused


@pytest.mark.parametrize(
    ("configured", "open_files", "expected"),
    [
        (0, 20_000, 20_000 - OPEN_FILES_RESERVED),
        (100, 20_000, 100),
        (50_000, 20_000, 20_000 - OPEN_FILES_RESERVED),
        (0, 600, 300),
        (0, resource.RLIM_INFINITY, 0),
        (7, resource.RLIM_INFINITY, 7),
    ],
)
def test_clients_never_get_the_last_files(configured: int, open_files: int, expected: int) -> None:
    assert connections_max(configured, open_files) == expected
