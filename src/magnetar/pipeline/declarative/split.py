"""Which queries can be kept, and how: a query taken apart into what has no state, one aggregate, and what stands on it.

Nothing is translated. What lies below the aggregate is run by Spark over the rows of new files alone, what lies above it over the groups;
so its expressions are Spark's own, to the last cast. What is not certainly the same is refused with a reason, and computed anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from magnetar.pipeline.declarative.catalyst import Catalyst, analysed, children, items, kind, nodes, option
from magnetar.pipeline.errors import PipelineError
from magnetar.pipeline.operators.aggregate_functions import Call

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLAIN: Final = ("Project", "Filter", "SubqueryAlias", "View", "Generate")
"""Nodes that make rows of one row at a time."""

FUNCTIONS: Final = {"Count": "count", "Sum": "sum", "Average": "avg", "Min": "min", "Max": "max"}

UNSTEADY: Final = frozenset(
    (
        "CurrentTimestamp",
        "Now",
        "CurrentDate",
        "CurrentTime",
        "LocalTimestamp",
        "CurrentUser",
        "CurrentDatabase",
        "CurrentCatalog",
        "CurrentTimeZone",
    )
)
"""Expressions whose value depends on when they are computed, though Spark calls them deterministic."""

FOREIGN: Final = {
    "PythonUDF": "calls a Python function, whose text may change unseen",
    "ScalaUDF": "calls a function of Java or Scala, whose code may change unseen",
    "ScalarSubquery": "has a subquery in an expression",
    "Exists": "has a subquery in an expression",
    "ListQuery": "has a subquery in an expression",
    "LateralSubquery": "has a subquery in an expression",
}


class CannotBeKeptError(PipelineError):
    """A query is computed anew at each refresh; the text says why."""

    slug = "cannot-be-kept"


@dataclass(frozen=True)
class Kept:
    """A query that can be kept. `below`: the plan without state, whose leaves are files.

    Without an aggregate (`calls` None) the result only grows: `below` is the whole query. With one, `below` has the columns of `group` and
    the calls' arguments, `above` is the rest of the plan and `aggregate` the node in it, or None where the groups are the result as they
    are (`columns` in their order).
    """

    below: Any
    columns: tuple[str, ...]
    group: tuple[str, ...] = ()
    calls: tuple[Call, ...] | None = None
    above: Any = None
    aggregate: Any = None


def split(spark: SparkSession, frame: DataFrame) -> Kept:
    """Raises CannotBeKeptError."""
    plan = analysed(frame)
    if spark.conf.get("spark.sql.ansi.enabled") != "true":
        raise CannotBeKeptError("is computed with spark.sql.ansi.enabled = false, where sums overflow unseen")
    _check(plan)
    columns = tuple(each.name() for each in items(plan.output()))
    if len({name.lower() for name in columns}) < len(columns):
        raise CannotBeKeptError("two columns have the same name")
    top = plan
    while kind(top) in ("Project", "Filter", "SubqueryAlias", "View"):
        top = children(top)[0]
    catalyst = Catalyst(spark)
    if kind(top) == "Distinct":
        grouped = catalyst.grouped(children(top)[0])
        plan, top = _standing_on(catalyst, plan, top, grouped), grouped
    if kind(top) == "Aggregate":
        return _aggregate(catalyst, plan, top, columns)
    for node in nodes(plan):
        _check_node(node)
    return Kept(plan, columns)


def _aggregate(catalyst: Catalyst, plan: Any, aggregate: Any, columns: tuple[str, ...]) -> Kept:
    child = aggregate.child()
    for node in nodes(child):
        _check_node(node)
    groups, results = items(aggregate.groupingExpressions()), items(aggregate.aggregateExpressions())
    for each in groups:
        if each.foldable():
            raise CannotBeKeptError(f"groups by {each.sql()}, which is the same for all rows")
        if each.dataType().typeName() in ("float", "double"):
            raise CannotBeKeptError(f"groups by {each.sql()}, which is a {each.dataType().typeName()}")
    found = _calls(results)
    bare = _bare(plan, aggregate, groups, found) if groups else None
    group = tuple(bare[: len(groups)] if bare else (f"_g{place}" for place in range(len(groups))))
    named = bare[len(groups) :] if bare else [f"_a{place}" for place in range(len(found))]
    arguments, selected = [], [catalyst.alias(each, name) for each, name in zip(groups, group, strict=True)]
    for call, name in zip(found, named, strict=True):
        function, argument = _call(catalyst, call)
        column = None if argument is None else f"__arg{len(selected)}"
        if argument is not None:
            selected.append(catalyst.alias(argument, column or ""))
        arguments.append(Call(function, column, name))
    if not groups:
        selected.append(catalyst.alias(catalyst.one(), GLOBAL))
        group = (GLOBAL,)
    if not arguments:  # DISTINCT, or GROUP BY alone
        arguments.append(Call("count", None, "__rows"))
    below = catalyst.project(selected, child)
    if bare:
        return Kept(below, columns, group, tuple(arguments))
    return Kept(below, columns, group, tuple(arguments), plan, aggregate)


GLOBAL: Final = "__all"
"""The one group of an aggregate without GROUP BY."""


def above(spark: SparkSession, kept: Kept, groups: DataFrame) -> DataFrame:
    """The result of a query that has more than the groups. `groups`: their rows, with the columns of `kept.group` and its calls."""
    from pyspark.sql import functions as F

    from magnetar.pipeline.declarative.catalyst import frame_of

    catalyst = Catalyst(spark)
    assert kept.calls is not None
    if kept.group == (GLOBAL,):  # one row, also of nothing
        values = {call.name: F.max(call.name) for call in kept.calls}
        zero = {
            c.name: F.coalesce(values[c.name], F.lit(0).cast("bigint")) for c in kept.calls if c.function == "count"
        }
        groups = groups.agg(*((values | zero)[call.name].alias(call.name) for call in kept.calls))
    plan = analysed(groups)
    by_name = {each.name(): each for each in items(plan.output())}
    known = items(kept.aggregate.groupingExpressions())
    results = items(kept.aggregate.aggregateExpressions())
    found = _calls(results)

    def column(expression: Any) -> Any | None:
        for place, each in enumerate(known):
            if expression.semanticEquals(each):
                return by_name[kept.group[place]]
        if kind(expression) == "AggregateExpression":
            place = next(place for place, each in enumerate(found) if expression.semanticEquals(each))
            return by_name[kept.calls[place].name]  # type: ignore[index]
        return None

    outputs = []
    for each in results:
        inner = catalyst.replaced(each.child() if kind(each) == "Alias" else each, column)
        outputs.append(catalyst.alias(inner, each.name(), each))
    return frame_of(spark, _standing_on(catalyst, kept.above, kept.aggregate, catalyst.project(outputs, plan)))


def _standing_on(catalyst: Catalyst, node: Any, old: Any, new: Any) -> Any:
    if node.equals(old):
        return new
    return catalyst.with_children(node, [_standing_on(catalyst, children(node)[0], old, new)])


def _calls(results: list[Any]) -> list[Any]:
    """The aggregate expressions in these, each once."""
    found: list[Any] = []
    for result in results:
        for each in _expressions(result):
            if kind(each) == "AggregateExpression" and not any(each.semanticEquals(known) for known in found):
                found.append(each)
    return found


def _bare(plan: Any, aggregate: Any, groups: list[Any], calls: list[Any]) -> list[str] | None:
    """Names of the groups and of the calls in the result, where it is nothing but these; else None."""
    node = plan
    while kind(node) in ("SubqueryAlias", "View"):
        node = children(node)[0]
    if not node.equals(aggregate):
        return None
    named: dict[int, str] = {}
    known = [*groups, *calls]
    for result in items(aggregate.aggregateExpressions()):
        inner = result.child() if kind(result) == "Alias" else result
        place = next((place for place, each in enumerate(known) if inner.semanticEquals(each)), None)
        if place is None or place in named:
            return None
        named[place] = result.name()
    return [named[place] for place in range(len(known))] if calls and len(named) == len(known) else None


def _call(catalyst: Catalyst, call: Any) -> tuple[str, Any | None]:
    """The function, and its argument: None for count(*)."""
    function = call.aggregateFunction()
    name = kind(function)
    if name not in FUNCTIONS:
        raise CannotBeKeptError(f"{call.sql()} is none of {', '.join(sorted(FUNCTIONS.values()))}")
    if call.isDistinct():
        raise CannotBeKeptError(f"{call.sql()}: for DISTINCT every value would have to be kept")
    if name in ("Sum", "Average") and "try_" in call.sql().lower():
        raise CannotBeKeptError(f"{call.sql()} does not fail when it overflows, as a kept sum does")
    below = items(function.children())
    if len(below) != 1:
        raise CannotBeKeptError(f"{call.sql()} has more than one argument")
    condition = option(call.filter())
    is_rows = name == "Count" and below[0].foldable() and not below[0].nullable()
    if is_rows and condition is None:
        return "count", None
    argument = catalyst.one() if is_rows else below[0]
    return FUNCTIONS[name], argument if condition is None else catalyst.where(condition, argument)


def _check(plan: Any) -> None:
    if plan.isStreaming():
        raise CannotBeKeptError("is a stream; a materialized view is a query over tables, so use spark.read")
    if not plan.deterministic():
        raise CannotBeKeptError("has an expression whose value is another each time, such as rand()")
    for node in nodes(plan):
        for expression in items(node.expressions()):
            for each in _expressions(expression):
                name = kind(each)
                if name in UNSTEADY:
                    raise CannotBeKeptError(f"has {each.sql()}, which depends on when it is computed")
                if name in FOREIGN:
                    raise CannotBeKeptError(FOREIGN[name])


def _check_node(node: Any) -> None:
    """Of the part without state."""
    name = kind(node)
    if name in PLAIN or name == "Union":
        return
    if name == "Join":
        join = node.joinType().toString()
        if join not in ("Inner", "Cross", "LeftOuter", "LeftSemi"):
            raise CannotBeKeptError(f"has a join of the kind {join}; Inner, Cross, LeftOuter and LeftSemi can be kept")
        return
    if name == "LogicalRelation":
        if kind(node.relation()) != "HadoopFsRelation":
            raise CannotBeKeptError("reads a source that is not a table of files")
        return
    if name == "Aggregate":
        raise CannotBeKeptError(
            "has an aggregate within another one or within a join; make a materialized view of the inner one"
        )
    sources = {
        "Range": "spark.range",
        "LocalRelation": "rows written in the query",
        "OneRowRelation": "rows written in the query",
    }
    if name in sources:
        raise CannotBeKeptError(f"reads {sources[name]}, which has no files that could be new")
    if name in ("DataSourceV2Relation", "RelationV2"):
        raise CannotBeKeptError(f"reads {node.name()}, whose rows change or have no files")
    raise CannotBeKeptError(f"has {name}, which is computed over all rows")


def _expressions(expression: Any) -> Iterator[Any]:
    yield expression
    for each in items(expression.children()):
        yield from _expressions(each)
