"""Quantiles of a bookie's operations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.bookie.storage.latencies import QUANTILES, WINDOW, Latencies


def test_nothing_recorded_has_no_quantiles() -> None:
    assert Latencies().summary() == (0, 0.0, ())


def test_quantiles_are_of_the_last_samples_and_the_count_of_all() -> None:
    latencies = Latencies()
    for _ in range(50):
        latencies.add(1e9)
    for sample in range(WINDOW):
        latencies.add(float(sample))
    summary = latencies.summary()
    assert summary.samples == WINDOW + 50
    assert dict(zip(QUANTILES, summary.quantiles_ms, strict=True)) == {
        0.5: 512.0,
        0.75: 767.0,
        0.95: 972.0,
        0.99: 1013.0,
        0.999: 1022.0,
        1.0: 1023.0,
    }


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=3000))
def test_quantiles_ascend_and_are_samples(samples: list[float]) -> None:
    latencies = Latencies()
    for sample in samples:
        latencies.add(sample)
    found = latencies.summary().quantiles_ms
    assert list(found) == sorted(found)
    assert set(found) <= set(samples[-WINDOW:])
    assert found[-1] == max(samples[-WINDOW:])
