"""What a project defines, taken down as its files run: datasets, the flows that fill them, sinks.

A registry of `pyspark.pipelines` for classic sessions: Spark's own sends everything to a Spark Connect server, and needs one. Queries in
SQL are plans of Spark's parser, queries in Python are functions; both are called when what they read is there.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pyspark.pipelines import output as outputs
from pyspark.pipelines.flow import AutoCdcFlow
from pyspark.pipelines.flow import Flow as PythonFlow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.sql.types import StructType

from magnetar.pipeline.declarative.catalyst import frame_of, items, option
from magnetar.pipeline.declarative.project import Project, ProjectError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kind: TypeAlias = Literal["materialized view", "streaming table", "temporary view", "sink"]


@dataclass(frozen=True)
class Place:
    """Where something is defined. `line` counts from 1; 0 where it is not known."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Flow:
    """A query that fills a dataset. `query` may raise what Spark's analyser says of a dataset that is not there yet."""

    name: str
    query: Callable[[], DataFrame]
    place: Place
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Dataset:
    """`name`: as it was written, of one or two parts. `schema`: in SQL, or None for that of the query."""

    name: str
    kind: Kind
    place: Place
    flows: list[Flow] = field(default_factory=list)
    comment: str | None = None
    schema: str | None = None
    format: str | None = None
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)


class Registry(GraphElementRegistry):
    """Datasets by name in lower case, in the order of their definition."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self._spark = spark
        self._root = root
        self._flows: list[tuple[str, Flow]] = []
        self.datasets: dict[str, Dataset] = {}

    def register_output(self, output: Any) -> None:
        place = self._place(output.source_code_location)
        if isinstance(output, outputs.Table):
            kind: Kind = "materialized view" if isinstance(output, outputs.MaterializedView) else "streaming table"
            schema = _ddl(output.schema)
            found = Dataset(
                output.name,
                kind,
                place,
                comment=output.comment,
                schema=schema,
                format=output.format,
                partition_by=tuple(output.partition_cols or ()),
                properties=dict(output.table_properties),
            )
        elif isinstance(output, outputs.TemporaryView):
            found = Dataset(output.name, "temporary view", place, comment=output.comment)
        elif isinstance(output, outputs.Sink):
            found = Dataset(output.name, "sink", place, format=output.format, options=dict(output.options))
        else:
            raise ProjectError(
                f"{place}: {type(output).__name__} {output.name} is a kind of dataset that is not known here"
            )
        self._add(found)

    def register_flow(self, flow: PythonFlow) -> None:
        place = self._place(flow.source_code_location)
        self._flows.append((flow.target, Flow(flow.name, flow.func, place, dict(flow.spark_conf))))

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        raise ProjectError(
            f"{self._place(flow.source_code_location)}: Auto CDC flows are not kept here; run the project with `spark-pipelines`, or write "
            "a source with FORMAT DEBEZIUM or UPSERT for `magnetar pipeline run`"
        )

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        """All statements of a file. ProjectError for what is none of a pipeline, or what Spark's parser does not take."""
        from pyspark.errors import PySparkException

        jvm: Any = self._spark._jvm
        splitter = getattr(getattr(jvm.org.apache.spark.sql.pipelines.graph, "SqlGraphRegistrationContext$"), "MODULE$")
        try:
            found = items(splitter.splitSqlFileIntoQueries(self._spark._jsparkSession, sql_text, str(file_path)))
        except PySparkException as error:
            raise ProjectError(f"{file_path}: {_first_line(error)}") from error
        for each in found:
            line = option(each.queryOrigin().line())
            self._statement(option(each.queryOrigin().sqlText()), each.plan(), Place(str(file_path), int(line or 0)))

    def _statement(self, text: str, plan: Any, place: Place) -> None:
        kind = plan.getClass().getSimpleName()
        match kind:
            case "CreateMaterializedViewAsSelect":
                self._sql_table(plan, "materialized view", place)
                self._add_sql_flow(_name(plan), _name(plan), text, lambda made: made.query(), place)
            case "CreateStreamingTableAsSelect":
                self._sql_table(plan, "streaming table", place)
                self._add_sql_flow(_name(plan), _name(plan), text, lambda made: made.query(), place)
            case "CreateStreamingTable":
                self._sql_table(plan, "streaming table", place)
            case "CreateViewCommand" if "LocalTempView" in plan.viewType().toString():
                name = plan.name().table()
                self._add(Dataset(name, "temporary view", place, comment=option(plan.comment())))
                self._add_sql_flow(name, name, text, lambda made: made.plan(), place)
            case "CreateFlowCommand":
                insert = plan.flowOperation()
                if insert.getClass().getSimpleName() != "InsertIntoStatement" or not insert.byName():
                    raise ProjectError(f"{place}: a flow is CREATE FLOW name AS INSERT INTO table BY NAME SELECT ...")
                target = ".".join(items(insert.table().multipartIdentifier()))
                self._add_sql_flow(_name(plan), target, text, lambda made: made.flowOperation().query(), place)
            case _:
                raise ProjectError(
                    f"{place}: {kind} is not a statement of a pipeline; there are CREATE STREAMING TABLE, MATERIALIZED VIEW, "
                    "TEMPORARY VIEW and FLOW (settings go into the spec's configuration)"
                )

    def _sql_table(self, plan: Any, kind: Kind, place: Place) -> None:
        name = _name(plan)
        spec = plan.tableSpec()
        types = [f"{_quoted(each.name())} {each.dataType().sql()}" for each in items(plan.columns())]
        self._add(
            Dataset(
                name,
                kind,
                place,
                comment=option(spec.comment()),
                schema=", ".join(types) or None,
                format=option(spec.provider()),
                partition_by=tuple(each.describe() for each in items(plan.partitioning())),
                properties={pair._1(): pair._2() for pair in items(spec.properties().toSeq())},
            )
        )

    def _add_sql_flow(self, name: str, target: str, text: str, query: Callable[[Any], Any], place: Place) -> None:
        """`query`: that of the statement's plan. It is parsed for each analysis: one that failed leaves its marks in the nodes."""

        def frame() -> DataFrame:
            return frame_of(self._spark, query(parser.parsePlan(text)))

        parser = self._spark._jsparkSession.sessionState().sqlParser()
        self._flows.append((target, Flow(name, frame, place)))

    def _add(self, dataset: Dataset) -> None:
        before = self.datasets.setdefault(dataset.name.lower(), dataset)
        if before is not dataset:
            raise ProjectError(f"{dataset.place}: {dataset.name} is defined at {before.place} already")

    def _place(self, location: Any) -> Place:
        path = Path(location.filename)
        shown = path.relative_to(self._root) if path.is_relative_to(self._root) else path
        return Place(str(shown), location.line_number or 0)

    def complete(self) -> dict[str, Dataset]:
        """With the flows at their targets, when all files are read. ProjectError."""
        for target, flow in self._flows:
            dataset = self.datasets.get(target.lower())
            if dataset is None:
                raise ProjectError(f"{flow.place}: flow {flow.name} fills {target}, which nothing defines")
            if any(each.name == flow.name for each in dataset.flows):
                raise ProjectError(f"{flow.place}: {target} has two flows named {flow.name}; name one otherwise")
            if dataset.flows and dataset.kind not in ("streaming table", "sink"):
                raise ProjectError(f"{flow.place}: a {dataset.kind} has one flow, and {target} has one already")
            dataset.flows.append(flow)
        self._flows.clear()
        for dataset in self.datasets.values():
            if not dataset.flows and dataset.kind != "sink":
                raise ProjectError(
                    f"{dataset.place}: no flow fills {dataset.name}; add one with @dp.append_flow or CREATE FLOW"
                )
        if not self.datasets:
            raise ProjectError("the project defines no datasets; do the globs of libraries in its spec name its files?")
        return self.datasets


def read_definitions(spark: SparkSession, project: Project) -> dict[str, Dataset]:
    """Run the project's files, in its directory, with `spark` among their names. ProjectError, and what a file raises."""
    registry = Registry(spark, project.root)
    with _directory(project.root), graph_element_registration_context(registry):
        for path in project.files():
            if path.suffix == ".sql":
                registry.register_sql(path.read_text(encoding="utf-8"), path.relative_to(project.root))
                continue
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            module.__dict__["spark"] = spark
            spec.loader.exec_module(module)
    return registry.complete()


@contextmanager
def _directory(path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


def struct(ddl: str) -> StructType:
    """Columns that are given in SQL. ParseException."""
    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


def _ddl(schema: Any) -> str | None:
    if isinstance(schema, StructType):
        return ", ".join(f"{_quoted(each.name)} {each.dataType.simpleString()}" for each in schema.fields)
    return schema if schema is None else str(schema)


def _name(plan: Any) -> str:
    """Of what a statement creates."""
    return ".".join(items(plan.name().nameParts()))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _first_line(error: Exception) -> str:
    from magnetar.pipeline.views.control.failures import cause

    return cause(error)
