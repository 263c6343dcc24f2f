"""Spark's logical plans from Python: what the other files here need of Catalyst, by py4j.

Nodes are Java objects; expressions keep their ids when nodes above them are built again, so that a part of an analysed plan can stand on
another relation without being analysed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def items(sequence: Any) -> list[Any]:
    """Of a Scala sequence."""
    return [sequence.apply(place) for place in range(sequence.size())]


def option(value: Any) -> Any:
    """Of a Scala Option; None for None."""
    return value.get() if value.isDefined() else None


def kind(node: Any) -> str:
    """The name of a node's class."""
    return str(node.getClass().getSimpleName())


def frame_of(spark: SparkSession, plan: Any) -> DataFrame:
    """The DataFrame of a logical plan, analysed. Raises AnalysisException."""
    from pyspark.sql import DataFrame

    jvm: Any = spark._jvm
    module = getattr(getattr(jvm.org.apache.spark.sql.classic, "Dataset$"), "MODULE$")
    return DataFrame(module.ofRows(spark._jsparkSession, plan), spark)


def analysed(frame: DataFrame) -> Any:
    """Its logical plan."""
    return frame._jdf.queryExecution().analyzed()


def children(node: Any) -> list[Any]:
    return items(node.children())


def nodes(node: Any) -> Iterator[Any]:
    """The node and all below it, from the top."""
    yield node
    for child in children(node):
        yield from nodes(child)


class Catalyst:
    """Builds nodes."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        jvm: Any = spark._jvm
        self._expressions = jvm.org.apache.spark.sql.catalyst.expressions
        self._plans = jvm.org.apache.spark.sql.catalyst.plans.logical

    def seq(self, values: Sequence[Any]) -> Any:
        """A Scala Seq."""
        return self._jvm.PythonUtils.toSeq(list(values))

    @property
    def nothing(self) -> Any:
        """Scala's None."""
        return self._jvm.scala.Option.empty()

    def with_children(self, node: Any, new: Sequence[Any]) -> Any:
        return node.withNewChildren(self.seq(new)) if new else node

    def alias(self, expression: Any, name: str, like: Any = None) -> Any:
        """`expression AS name`, with the id of the attribute `like` or one of its own."""
        named = self._expressions.NamedExpression
        number = named.newExprId() if like is None else like.exprId()
        return self._expressions.Alias(expression, name, number, self.seq([]), self.nothing, self.seq([]))

    def project(self, expressions: Sequence[Any], child: Any) -> Any:
        return self._plans.Project(self.seq(expressions), child)

    def grouped(self, child: Any) -> Any:
        """DISTINCT as GROUP BY all columns."""
        columns = child.output()
        return self._plans.Aggregate(columns, columns, child, self.nothing)

    def where(self, condition: Any, value: Any) -> Any:
        """The value where the condition is true, else NULL."""
        null = self._expressions.Literal(None, value.dataType())
        return self._expressions.If(condition, value, null)

    def one(self) -> Any:
        """The number 1."""
        return self._expressions.Literal(1, self._jvm.org.apache.spark.sql.types.DataTypes.IntegerType)

    def renamed(self, plan: Any, like: Sequence[Any]) -> Any:
        """The plan with the names and ids of these attributes for its columns, one by one."""
        pairs = zip(items(plan.output()), like, strict=True)
        return self.project([self.alias(own, wanted.name(), wanted) for own, wanted in pairs], plan)

    def replaced(self, expression: Any, by: Callable[[Any], Any | None]) -> Any:
        """The expression with everything in it replaced for which `by` has something, from the top."""
        found = by(expression)
        if found is not None:
            return found
        below = items(expression.children())
        new = [self.replaced(each, by) for each in below]
        if all(one is other for one, other in zip(below, new, strict=True)):
            return expression
        return self.with_children(expression, new)

    def on_files(self, leaf: Any, relation: Any) -> Any:
        """A LogicalRelation over another relation of the same columns."""
        made = self._jvm.org.apache.spark.sql.execution.datasources.LogicalRelation
        return made(relation, leaf.output(), self.nothing, False, self.nothing)
