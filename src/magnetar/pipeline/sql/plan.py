"""Plans: what a SELECT means in terms of operators. All expressions are Spark SQL over the columns of the node's input, unqualified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

EPOCH_TIMESTAMP = "__epoch_timestamp"
"""The column that stands for now(): the epoch's time, so that a repeated epoch gives the same rows."""
RECOMPUTE_INPUT = "__input"
"""The name of the input in the text of a Recompute."""


@dataclass(frozen=True, slots=True)
class Named:
    """`sql AS name`; `*` for all columns of an input whose columns are not known yet."""

    sql: str
    name: str
    kind: str | None = field(default=None, compare=False, repr=False)
    """The sort of its values (`typed.KINDS`), where that is known."""


@dataclass(frozen=True, slots=True)
class Order:
    sql: str
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """`function(argument) AS name`; no argument is count(*). `condition` is FILTER (WHERE ...).

    `function` is a name in `operators.aggregate_functions.FUNCTIONS`.
    """

    function: str
    argument: str | None
    name: str
    condition: str | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """The changes of a source or view."""

    name: str


@dataclass(frozen=True, slots=True)
class OneRow:
    """One row without columns, which is there as long as the view is: what a SELECT without FROM reads."""


@dataclass(frozen=True, slots=True)
class LateRows:
    """LATE_ROWS(v): what `v` takes no longer, the rows of its input that come for a closed window, with that window."""

    input: Scan


@dataclass(frozen=True, slots=True)
class Windowed:
    """TUMBLE (slide = size) or HOP: the input's columns, `window_start` and `window_end`; a row once for each window it is in."""

    input: Plan
    time_column: str
    size_us: int
    slide_us: int

    @property
    def spark_sql(self) -> str:
        """A struct with `start` and `end`."""
        slide = "" if self.slide_us == self.size_us else f", '{self.slide_us} microseconds'"
        return f"window({self.time_column}, '{self.size_us} microseconds'{slide})"


@dataclass(frozen=True, slots=True)
class Unnest:
    """Each row of the input once for each element of an array (Spark SQL over its columns), which is the column `name`; `ordinality` names
    the column with its number, when it is wanted. Without elements a row is left out, or with `outer` once there with NULL."""

    input: Plan
    array: str
    name: str
    ordinality: str | None = None
    outer: bool = False
    kind: str | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Project:
    """Stateless: filter, then outputs."""

    input: Plan
    outputs: tuple[Named, ...]
    condition: str | None = None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Filter, group by `keys`, `calls`; then HAVING and outputs over the names of keys and calls. No keys: one group."""

    input: Plan
    keys: tuple[Named, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Named, ...]
    condition: str | None = None
    having: str | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """Equi join. Keys are over the left and right input; it gives `left_columns` and `right_columns` under their new names.

    `temporal`: the right side is looked up as it is when the left row arrives, and does not change rows sent before. `interval`: what the
    conditions above the join say of two of its columns by their new names: `low_us <= left - right <= high_us` (None: no bound). It decides
    how long rows are kept, not which rows come out, so two plans that differ in it alone are the same plan.
    """

    left: Plan
    right: Plan
    side: Literal["inner", "left", "full"]
    keys: tuple[tuple[str, str], ...]
    left_columns: tuple[Named, ...]
    right_columns: tuple[Named, ...]
    temporal: bool = False
    interval: tuple[str, str, int | None, int | None] | None = field(default=None, compare=False, repr=False)
    asof: tuple[str, str, str] | None = None
    """Of each left row only the match that is nearest: `left >= right`, or with >, <= or <, of Spark SQL over the left and right input."""


@dataclass(frozen=True, slots=True)
class TopN:
    """The first `limit` rows of each partition, behind `offset` others; `rank` names the column with the row number, when it is wanted."""

    input: Plan
    partition_by: tuple[str, ...]
    order_by: tuple[Order, ...]
    limit: int
    outputs: tuple[Named, ...]
    rank: str | None = None
    condition: str | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Dedup:
    """The first row of each key in that order."""

    input: Plan
    keys: tuple[str, ...]
    order_by: tuple[Order, ...]
    outputs: tuple[Named, ...]
    condition: str | None = None


@dataclass(frozen=True, slots=True)
class Recompute:
    """No incremental rule: the outputs are computed anew over all rows of each group of `keys` that changed.

    `grouped`: one row a group (GROUP BY, then HAVING); else one for each input row (OVER).
    """

    input: Plan
    keys: tuple[str, ...]
    outputs: tuple[Named, ...]
    condition: str | None = None
    grouped: bool = False
    having: str | None = None
    session: tuple[str, int] | None = None
    """Rows of a group are one session while each comes at most so many microseconds behind the one before: (time, gap)."""


@dataclass(frozen=True, slots=True)
class UnionAll:
    """All rows of several inputs, whose columns have the same names and order."""

    inputs: tuple[Plan, ...]


Plan: TypeAlias = (
    Scan | OneRow | LateRows | Windowed | Unnest | Project | Aggregate | Join | TopN | Dedup | Recompute | UnionAll
)


def inputs(plan: Plan) -> tuple[Plan, ...]:
    """The nodes directly below."""
    if isinstance(plan, Scan | OneRow):
        return ()
    if isinstance(plan, UnionAll):
        return plan.inputs
    return (plan.left, plan.right) if isinstance(plan, Join) else (plan.input,)


def sources(plan: Plan) -> tuple[str, ...]:
    """The names it reads, each once, in the order of the text."""
    if isinstance(plan, Scan):
        return (plan.name,)
    return tuple(dict.fromkeys(name for below in inputs(plan) for name in sources(below)))


def output_names(plan: Plan) -> tuple[str, ...] | None:
    """The columns it gives; None when that depends on a source whose columns are not known."""
    if isinstance(plan, Scan | LateRows):
        return None
    if isinstance(plan, OneRow):
        return ()
    if isinstance(plan, UnionAll):
        return output_names(plan.inputs[0])
    if isinstance(plan, Windowed):
        below = output_names(plan.input)
        return None if below is None else (*below, "window_start", "window_end")
    if isinstance(plan, Unnest):
        below = output_names(plan.input)
        added = (plan.name,) if plan.ordinality is None else (plan.name, plan.ordinality)
        return None if below is None else (*below, *added)
    named = (*plan.left_columns, *plan.right_columns) if isinstance(plan, Join) else plan.outputs
    found = tuple(column.name for column in named)
    if isinstance(plan, TopN) and plan.rank is not None:
        found = (*found, plan.rank)
    return None if "*" in found else found


def output_kinds(plan: Plan, of_relation: Callable[[str], Mapping[str, str | None]]) -> dict[str, str | None]:
    """The sorts of values of the columns it gives, by lower-case name, where they are known. `of_relation`: those of what it reads."""
    if isinstance(plan, Scan):
        return dict(of_relation(plan.name))
    if isinstance(plan, LateRows | OneRow):
        return {}
    if isinstance(plan, UnionAll):
        branches = [output_kinds(branch, of_relation) for branch in plan.inputs]
        return {name: next((each[name] for each in branches if each.get(name)), None) for name in branches[0]}
    if isinstance(plan, Windowed):
        below = output_kinds(plan.input, of_relation)
        time = below.get(plan.time_column.strip("`").lower())
        return {**below, "window_start": time, "window_end": time}
    if isinstance(plan, Unnest):
        number = {} if plan.ordinality is None else {plan.ordinality.lower(): "int"}
        return {**output_kinds(plan.input, of_relation), plan.name.lower(): plan.kind, **number}
    named = (*plan.left_columns, *plan.right_columns) if isinstance(plan, Join) else plan.outputs
    found = {column.name.lower(): column.kind for column in named if column.name != "*"}
    if any(column.name == "*" for column in named) and not isinstance(plan, Join):
        found = {**output_kinds(plan.input, of_relation), **found}
    if isinstance(plan, TopN) and plan.rank is not None:
        found[plan.rank.lower()] = "int"
    return found


def explain(plan: Plan, indent: int = 0) -> str:
    """One line for each node, what it reads below it."""
    fields = [
        f"{name}={getattr(plan, name)!r}"
        for name in type(plan).__dataclass_fields__
        if name not in ("input", "inputs", "left", "right", "interval") and getattr(plan, name)
    ]
    lines = [f"{'  ' * indent}{type(plan).__name__} {' '.join(fields)}".rstrip()]
    return "\n".join([*lines, *(explain(below, indent + 1) for below in inputs(plan))])
