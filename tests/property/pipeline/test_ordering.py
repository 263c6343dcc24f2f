"""Rows sorted by eight bytes of their first key column are in the order that comparing whole keys gives."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline.state import ordering

TEXTS = st.one_of(
    st.text("ab\0", max_size=12),
    st.text("ab\0", max_size=12).map(lambda text: f"common beginning {text}"),
    st.text("az\x7f\u07ff\u0800\uffff\U00010000", max_size=4),  # one to four bytes each
    st.text("é€😀", max_size=5),
)
ROWS = st.lists(st.tuples(TEXTS, st.one_of(st.none(), st.integers(0, 2)), st.integers(0, 300)), min_size=1, max_size=60)


@pytest.fixture(autouse=True, scope="module")
def every_size() -> object:
    """Few rows are sorted without it."""
    patch = pytest.MonkeyPatch()
    patch.setattr(ordering, "ROWS_MIN", 1)
    patch.setattr(ordering, "TIED_MAX", 1.0)
    yield
    patch.undo()


@given(rows=ROWS, two=st.booleans(), first=st.booleans(), sort_before=st.booleans())
def test_the_order_is_that_of_whole_keys(
    rows: list[tuple[str, int | None, int]], two: bool, first: bool, sort_before: bool
) -> None:
    schema = {"text": pl.String, "number": pl.Int64, "vnode": pl.UInt16}
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_row_index("at")
    key = ["text", "number"] if two else ["text"]
    by = ["vnode", *key] if first else key
    expected = frame.sort(by, nulls_last=False, maintain_order=True)
    given_rows = expected if sort_before else frame
    found = ordering.by_key(given_rows, key, "vnode" if first else None)
    assert found.equals(expected, null_equal=True)


@given(keys=st.lists(st.one_of(st.none(), TEXTS), min_size=1, max_size=20), vnodes=st.data())
def test_null_comes_first(keys: list[str | None], vnodes: st.DataObject) -> None:
    numbers = [vnodes.draw(st.integers(0, 3)) for _ in keys]
    frame = pl.DataFrame({"text": keys, "vnode": numbers}, schema={"text": pl.String, "vnode": pl.UInt16})
    expected = sorted(
        zip(numbers, keys, strict=True), key=lambda pair: (pair[0], pair[1] is not None, (pair[1] or "").encode())
    )
    assert ordering.by_key(frame, ["text"], "vnode").select("vnode", "text").rows() == expected
