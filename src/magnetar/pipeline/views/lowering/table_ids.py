"""Numbers of state tables: given once, the same whenever the same statements are planned again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar.pipeline.errors import StateSchemaError
from magnetar.pipeline.state.table import TABLE_ID_MAX


class TableIds:
    """Hands out table ids by view and by stage, and remembers them. No id is given twice, not even after its view is dropped."""

    def __init__(self, plain: Mapping[str, Any] | None = None) -> None:
        """`plain`: what `to_plain` gave, or a mapping that has its keys among others (the `views` of a manifest)."""
        plain = plain or {}
        self._tables: dict[str, int] = {str(name): int(number) for name, number in plain.get("tables", {}).items()}
        self._stages: dict[str, list[int]] = {
            str(stage): [int(number) for number in numbers] for stage, numbers in plain.get("stages", {}).items()
        }
        self._next = int(plain.get("next_table_id", 1))

    def of_view(self, view: str) -> int:
        """The id of the table that holds the view's rows."""
        if view not in self._tables:
            self._tables[view] = self._new()
        return self._tables[view]

    def of_stage(self, stage_id: str, count: int) -> list[int]:
        """The ids of the `count` state tables of a stage. StateSchemaError when it had another number of them."""
        if stage_id not in self._stages:
            self._stages[stage_id] = [self._new() for _ in range(count)]
        found = self._stages[stage_id]
        if len(found) != count:
            raise StateSchemaError(f"stage {stage_id} had {len(found)} state tables and needs {count}; drop its view")
        return list(found)

    def forget(self, view: str) -> tuple[int, ...]:
        """The view is dropped: all its ids, whose tables may go. One of the same name created later gets other ids."""
        gone = [self._tables.pop(view)] if view in self._tables else []
        for stage in [stage for stage in self._stages if stage.partition("/")[0] == view]:
            gone += self._stages.pop(stage)
        return tuple(gone)

    def rename(self, view: str, to: str) -> None:
        """The view keeps its ids."""
        if view in self._tables:
            self._tables[to] = self._tables.pop(view)
        for stage in [stage for stage in self._stages if stage.partition("/")[0] == view]:
            self._stages[f"{to}/{stage.partition('/')[2]}"] = self._stages.pop(stage)

    def to_plain(self) -> dict[str, Any]:
        """For the manifest."""
        return {"tables": dict(self._tables), "stages": dict(self._stages), "next_table_id": self._next}

    def _new(self) -> int:
        number = self._next
        if number > TABLE_ID_MAX:
            raise StateSchemaError(f"all {TABLE_ID_MAX} table ids of this pipeline are used; make a new pipeline")
        self._next += 1
        return number
