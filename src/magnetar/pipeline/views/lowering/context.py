"""What the lowering of every node shares: columns by Spark's word, stages with stable numbers, refusals with a place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from magnetar.hashing.vnode import DEFAULT_VNODES, VnodeHash
from magnetar.pipeline.errors import ExpressionError, PlanRefusedError, StateSchemaError
from magnetar.pipeline.operators.operator import INPUT, Operator
from magnetar.pipeline.sql.plan import Named, Plan
from magnetar.pipeline.sql.statements import CreateSource, ErrorPolicy, LatePolicy
from magnetar.pipeline.views.lowering.changes import Changes, Part, Windows, steps_of
from magnetar.pipeline.views.lowering.stages import EPOCH_TIMESTAMP, Feed, Late, Stage, Step
from magnetar.pipeline.views.lowering.table_ids import TableIds


class Types(Protocol):
    """Which columns Spark would give."""

    def of_source(self, source: CreateSource) -> pa.Schema:
        """The source's columns, with `ROW_ID` behind them."""
        ...

    def after(self, schema: pa.Schema, steps: Sequence[Step]) -> pa.Schema:
        """The columns behind the steps, all of which may be NULL. ExpressionError."""
        ...

    def spark_name(self, kind: pa.DataType) -> str:
        """Spark's word for a type, as CAST takes it."""
        ...


class Lowering:
    """One view while it is lowered: the stages so far."""

    def __init__(
        self,
        view: str,
        place: tuple[int, int],
        types: Types,
        ids: TableIds,
        relation: Callable[[str], Changes],
        changes_of: Callable[[Lowering, Plan], Changes],
        vnode_count: int = DEFAULT_VNODES,
        late_rows: LatePolicy = "drop",
        plan_of: Callable[[str], Plan | None] = lambda _: None,
        on_error: ErrorPolicy = "null",
        vnode_hash: VnodeHash = "crc32",
    ) -> None:
        """`place`: line and column of the query in its file. `relation`: what is known of a name that the view may read; `plan_of`: the
        plan of one of them, if it has one."""
        self.view = view
        self.ids = ids
        self.relation = relation
        self.plan_of = plan_of
        self.vnode_count = vnode_count
        self.late_rows: LatePolicy = late_rows
        self.on_error: ErrorPolicy = on_error
        self.vnode_hash: VnodeHash = vnode_hash
        self.stages: list[Stage] = []
        self._place = place
        self._types = types
        self._changes_of = changes_of

    def changes(self, plan: Plan) -> Changes:
        """The changelog of a plan; its stages are added."""
        return self._changes_of(self, plan)

    def refuse(self, message: str) -> PlanRefusedError:
        """The error, with the query's place."""
        return PlanRefusedError(f"{self.view}: {message}", *self._place)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """What does not fit is refused where the query stands."""
        try:
            yield
        except (ExpressionError, StateSchemaError) as error:
            raise self.refuse(str(error)) from None

    def after(self, schema: pa.Schema, steps: Sequence[Step]) -> pa.Schema:
        """The columns behind the steps, or a refusal."""
        with self.refusing():
            return self._types.after(schema, steps)

    def spark_name(self, kind: pa.DataType) -> str:
        """Spark's word for a type."""
        return self._types.spark_name(kind)

    def select(self, below: Changes, condition: str | None, outputs: Sequence[Named], key: Sequence[str]) -> Changes:
        """Filter, then exactly these outputs; `key` are those of the outputs that are the key."""
        steps = steps_of(condition, outputs)
        if not below.append_only and any(EPOCH_TIMESTAMP in text for text in [condition or "", *map(_sql, outputs)]):
            raise self.refuse(
                "now() is the time of the epoch in which a row came, and rows of the input change or go later; "
                "select now() in a view of a source, and read that"
            )
        schema = self.after(below.schema, steps)
        return below.after(
            steps,
            schema,
            key=tuple(key),
            columns=tuple(output.name for output in outputs),
            times=below.times_of(outputs),
            windows=below.windows_of(outputs),
        )

    def project(self, below: Changes, outputs: Sequence[Named], condition: str | None = None) -> Changes:
        """Filter, then these outputs and what else the key needs, which is hidden."""
        outputs = below.expanded(outputs)
        selected, key = below.with_key(outputs)
        found = self.select(below, condition, selected, key)
        return found.after((), found.schema, columns=tuple(output.name for output in outputs))

    def stage_id(self, kind: str) -> str:
        """Of the next stage."""
        return f"{self.view}/{len(self.stages) + 1}-{kind}"

    def stage(
        self,
        stage_id: str,
        inputs: dict[str, tuple[Changes, Sequence[str]]],
        operator: Operator,
        *,
        append_only: bool,
        ordered_by: tuple[str, ...] = (),
        watermarks: Sequence[str] = (),
        preaggregate: tuple[Named, ...] | None = None,
        takes_rows: bool = False,
        windows: Windows | None = None,
    ) -> Changes:
        """Add a stage. `inputs`: by the operator's names, the changes and the columns they are placed by."""
        feeds = [
            Feed(name, part.origin, part.steps, below.schema, tuple(place_by), ordered_by, self.view, self.on_error)
            for name, (below, place_by) in inputs.items()
            for part in below.parts
        ]
        late = [source for feed in feeds for step in feed.steps if isinstance(step, Late) for source in step.sources]
        closing = tuple(sorted({*watermarks, *late}))
        self.stages.append(Stage(stage_id, tuple(feeds), operator, closing, preaggregate, takes_rows))
        return Changes(
            (Part(stage_id),),
            operator.output_schema,
            tuple(operator.output_key),
            tuple(operator.output_schema.names),
            append_only,
            windows=windows,
        )

    def input_stage(
        self, stage_id: str, below: Changes, place_by: Sequence[str], operator: Operator, *, append_only: bool
    ) -> Changes:
        """A stage with one input."""
        return self.stage(stage_id, {INPUT: (below, place_by)}, operator, append_only=append_only)


def _sql(output: Named) -> str:
    return output.sql
