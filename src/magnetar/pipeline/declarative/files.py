"""The files that a query reads, and the query over new ones alone.

A table of files only grew when all files that were read are still there as they were. Then the new rows of a query are those of its parts:
of each relation the new files, with the relations before it as they are now and those behind it as they were.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote, urlparse

from magnetar.pipeline.declarative.catalyst import Catalyst, children, frame_of, items, kind, nodes
from magnetar.pipeline.declarative.split import CannotBeKeptError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Files: TypeAlias = dict[str, list[int]]
"""By path as Spark has it: size in bytes, time of the last change in nanoseconds."""

Listing: TypeAlias = dict[str, Files]
"""By the root paths of a relation."""

_FIELDS: Final = "spark.sql.debug.maxToStringFields"


class Rewritten(Exception):
    """Files that were read are gone or changed, or the rows of a join's side that may only be as it was: all is computed anew."""


def roots(leaf: Any) -> str:
    """What a relation is known by."""
    return ",".join(sorted(each.toString() for each in items(leaf.relation().location().rootPaths())))


def list_files(spark: SparkSession, plan: Any) -> Listing:
    """The files that the leaves of a plan have now. CannotBeKeptError for those of another machine."""
    found: Listing = {}
    for leaf in _leaves(plan):
        name = roots(leaf)
        if name not in found:
            leaf.relation().location().refresh()
            found[name] = {path: _stamp(path) for path in leaf.relation().location().inputFiles()}
    return found


def _stamp(path: str) -> list[int]:
    parsed = urlparse(path)
    if parsed.scheme not in ("", "file"):
        raise CannotBeKeptError(f"reads {path}, and only files of this machine are compared")
    about = os.stat(unquote(parsed.path))
    return [about.st_size, about.st_mtime_ns]


def fingerprint(spark: SparkSession, plan: Any) -> str:
    """Another one whenever a query may give something else of the same files."""
    before = spark.conf.get(_FIELDS, None)
    spark.conf.set(_FIELDS, "100000")
    try:
        text = plan.canonicalized().toString()
    finally:
        spark.conf.unset(_FIELDS) if before is None else spark.conf.set(_FIELDS, before)
    names = [each.name() for each in items(plan.output())]
    zone = spark.conf.get("spark.sql.session.timeZone")
    leaves = [[roots(leaf), leaf.relation().options().toString(), leaf.schema().json()] for leaf in _leaves(plan)]
    return hashlib.sha256(repr((text, names, leaves, zone)).encode()).hexdigest()


@dataclass(frozen=True)
class Delta:
    """The rows of new files. `known`: the files that were read; none for a first time."""

    spark: SparkSession
    plan: Any
    known: Mapping[str, Files]
    now: Listing

    def new_files(self) -> int:
        """How many are read. Raises Rewritten."""
        count = 0
        for name, files in self.now.items():
            before = self.known.get(name, {})
            if any(files.get(path) != stamp for path, stamp in before.items()):
                raise Rewritten
            count += len(files) - len(before)
        return count

    def frame(self) -> DataFrame | None:
        """Raises Rewritten."""
        parts = self._delta(self.plan)
        frames = [frame_of(self.spark, part) for part in parts]
        return reduce(lambda left, right: left.union(right), frames) if frames else None

    def whole(self) -> DataFrame:
        """The rows of all files that `now` names."""
        return frame_of(self.spark, self._with(self.plan, self.now))

    def _delta(self, node: Any) -> list[Any]:
        catalyst = Catalyst(self.spark)
        name, below = kind(node), children(node)
        if name == "LogicalRelation":
            files = self._new(node)
            return [self._leaf(node, files)] if files else []
        if name == "Union":
            output = items(node.output())
            return [catalyst.renamed(part, output) for child in below for part in self._delta(child)]
        if name != "Join":
            return [catalyst.with_children(node, [part]) for part in self._delta(below[0])]
        left, right = below
        on_right = self._delta(right)
        if on_right and node.joinType().toString() not in ("Inner", "Cross"):
            raise Rewritten
        now = self._with(right, self.now) if (on_left := self._delta(left)) else None
        before = self._with(left, self.known) if on_right else None
        return [
            *(catalyst.with_children(node, [part, now]) for part in on_left),
            *(catalyst.with_children(node, [before, part]) for part in on_right),
        ]

    def _with(self, node: Any, listing: Mapping[str, Files]) -> Any:
        if kind(node) == "LogicalRelation":
            return self._leaf(node, list(listing.get(roots(node), {})))
        return Catalyst(self.spark).with_children(node, [self._with(each, listing) for each in children(node)])

    def _new(self, leaf: Any) -> list[str]:
        name = roots(leaf)
        before = self.known.get(name, {})
        return [path for path in self.now[name] if path not in before]

    def _leaf(self, leaf: Any, files: list[str]) -> Any:
        """The relation over these files alone."""
        from pyspark.sql.types import StructType

        relation = leaf.relation()
        given = {pair._1(): pair._2() for pair in items(relation.options().toSeq())}
        options = {name: value for name, value in given.items() if name.lower() not in ("path", "paths")}
        location = items(relation.location().rootPaths())
        if relation.partitionSchema().length() and len(location) == 1:
            options["basePath"] = location[0].toString()
        schema = StructType.fromJson(__import__("json").loads(relation.schema().json()))
        if not files:
            rows = self.spark.createDataFrame([], schema)
            return Catalyst(self.spark).renamed(rows._jdf.queryExecution().analyzed(), items(leaf.output()))
        reader = self.spark.read.format(relation.fileFormat().shortName()).schema(schema).options(**options)
        frame = reader.load([_unescaped(path) for path in files])
        found = next(each for each in _leaves(frame._jdf.queryExecution().analyzed()))
        return Catalyst(self.spark).on_files(leaf, found.relation())


def _unescaped(path: str) -> str:
    """`inputFiles` gives URLs, `load` takes paths."""
    parsed = urlparse(path)
    return f"{parsed.scheme}://{unquote(parsed.path)}" if parsed.scheme else unquote(path)


def _leaves(plan: Any) -> list[Any]:
    return [node for node in nodes(plan) if kind(node) == "LogicalRelation"]
