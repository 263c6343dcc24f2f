"""Nexmark's queries, as RisingWave writes them: each has a plan. Their rows are held beside DuckDB's by bench/nexmark.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.parser import parse
from magnetar.pipeline.sql.plan import explain
from magnetar.pipeline.sql.statements import CreateSource, CreateView

BENCH = Path(__file__).resolve().parents[4] / "bench"
NAMES = [f"q{number}" for number in range(23)]


@pytest.mark.parametrize("name", NAMES)
def test_a_query_has_a_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.syspath_prepend(str(BENCH))
    import nexmark  # type: ignore[import-not-found]

    assert list(nexmark.QUERIES) == NAMES
    catalog = Catalog()
    for statement in parse(nexmark.statements([name])):
        assert isinstance(statement, CreateSource | CreateView)
        catalog = catalog.create(statement)
    plan = catalog.find(name).plan
    assert plan is not None
    assert "Scan" in explain(plan)
