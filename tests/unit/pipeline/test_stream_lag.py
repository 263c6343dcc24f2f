"""What Spark's progress of a streaming query says of its lag, and which sessions keep views."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.base.errors import StartupError
from magnetar.pipeline import stream_lag
from magnetar.pipeline.session import classic


def progress(end: dict[str, Any] | None, latest: dict[str, Any] | None) -> SimpleNamespace:
    texts = [None if each is None else json.dumps(each) for each in (end, latest)]
    return SimpleNamespace(endOffset=texts[0], latestOffset=texts[1])


def test_lag_is_what_lies_between_the_batch_and_the_end() -> None:
    end = {"a": {"ledger": 3, "entry": 5}, "b": {"ledger": 3, "entry": 9}, "c": {"ledger": 2, "entry": 1}}
    latest = {"a": {"ledger": 3, "entry": 9}, "b": {"ledger": 3, "entry": 9}, "c": {"ledger": 4, "entry": 0}}
    assert stream_lag(progress(end, latest)) == {"a": 4, "b": 0, "c": None}
    assert stream_lag(progress(None, latest)) == {"a": None, "b": None, "c": None}
    assert stream_lag(progress(end, None)) == {}


def test_a_session_of_spark_connect_is_refused_with_what_to_take() -> None:
    with pytest.raises(StartupError, match=r"build_session\(\)"):
        classic(SimpleNamespace())  # type: ignore[arg-type]
