"""What an edited file changes in a pipeline that has run: which objects keep their state, and which have to be built again. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Final, Literal, TypeAlias

from magnetar.pipeline.errors import CatalogError
from magnetar.pipeline.sql.catalog import Catalog, Entry, fingerprint, identity
from magnetar.pipeline.sql.options import Options
from magnetar.pipeline.sql.plan import Plan, explain
from magnetar.pipeline.sql.statements import (
    AlterOptions,
    ColumnDefinition,
    Comment,
    CreateFunction,
    CreateIndex,
    CreateSink,
    CreateSource,
    CreateView,
    Drop,
    Rename,
    SetParallelism,
    Statement,
)

Action: TypeAlias = Literal["create", "change", "rename", "rebuild", "drop"]

_TOPICS: Final = ("topic", "topics", "topicspattern")
_BEGINNINGS: Final = ("startingoffsets", "startingtime", "scan.startup.mode", "scan.startup.timestamp.millis")


@dataclass(frozen=True, slots=True)
class Change:
    """Of one object. `why`: what differs, or what makes it necessary."""

    action: Action
    kind: str
    name: str
    why: str = ""

    @property
    def keeps_state(self) -> bool:
        """True unless rows that were computed are thrown away without a DROP in the file."""
        return self.action != "rebuild"

    def describe(self) -> str:
        """One line for people."""
        sign = {"create": "+", "change": "~", "rename": "~", "rebuild": "!", "drop": "-"}[self.action]
        return f"{sign} {self.action} {self.kind} {self.name}{f': {self.why}' if self.why else ''}"


def renames(known: Catalog, statements: Iterable[Statement]) -> tuple[Rename, ...]:
    """Those of the statements that are still to be done in the catalog that ran last."""
    found: list[Rename] = []
    names = {name.lower() for name in known.entries}
    for each in statements:
        if (
            isinstance(each, Rename)
            and each.name.lower() in names
            and (each.to.lower() not in names or each.to.lower() == each.name.lower())
        ):
            names = names - {each.name.lower()} | {each.to.lower()}
            found.append(each)
    return tuple(found)


def changes(known: Catalog, wanted: Catalog, statements: Iterable[Statement] = ()) -> tuple[Change, ...]:
    """From the catalog that ran last to the one that is to run, in the order of their objects. `statements`: those that led to it."""
    found: list[Change] = []
    for each in renames(known, statements):
        known = known.renamed(each)
        found.append(Change("rename", each.kind, each.to, f"it was {each.name}"))
    rebuilt: dict[str, str] = {}
    """What its state does not fit any more, or whose readers' state does not: the name and why."""
    altered = {
        name.lower(): columns
        for name, entry in wanted.entries.items()
        if (before := _entry(known, name)) is not None and (columns := _altered_columns(before, entry))
    }
    for name, entry in wanted.entries.items():
        before = _entry(known, name)
        if before is None:
            found.append(Change("create", entry.kind, name, _same_as(known, entry)))
            continue
        why = _reason(before, entry, rebuilt, altered)
        if why:
            rebuilt[name.lower()] = why
            found.append(Change("rebuild", entry.kind, name, why))
        elif difference := _difference(before, entry):
            found.append(Change("change", entry.kind, name, difference))
    gone = (entry for name, entry in known.entries.items() if _entry(wanted, name) is None)
    found += [Change("drop", entry.kind, entry.statement.name) for entry in gone]
    found += [Change("create", "INDEX", each.name) for key, each in wanted.indexes.items() if key not in known.indexes]
    found += [Change("drop", "INDEX", each.name) for key, each in known.indexes.items() if key not in wanted.indexes]
    return tuple(found)


def _same_as(known: Catalog, entry: Entry) -> str:
    """A hint where there is an object that differs by nothing but its name."""
    if entry.kind in ("VIEW", "SINK"):
        return ""
    for name, other in known.entries.items():
        if other.kind == entry.kind and identity(replace(other.statement, name=entry.statement.name)) == identity(
            entry.statement
        ):
            return f"the same as {name}; ALTER {entry.kind} {name} RENAME TO {entry.statement.name} in front of it would keep its rows"
    return ""


def _entry(catalog: Catalog, name: str) -> Entry | None:
    return next((entry for known, entry in catalog.entries.items() if known.lower() == name.lower()), None)


def _reason(before: Entry, after: Entry, rebuilt: dict[str, str], altered: dict[str, set[str]]) -> str:
    """Why the object cannot go on with the state that it has; empty when it can."""
    if before.kind != after.kind:
        return f"it was a {before.kind}"
    if after.kind == "VIEW":
        return ""
    for name in after.reads:
        if name.lower() in rebuilt:
            return f"{name}, which it reads, is built again"
    old, new = before.statement, after.statement
    if isinstance(old, CreateSource) and isinstance(new, CreateSource):
        return _source_reason(old, new)
    if before.plan != after.plan:
        return "its query is another one"
    if before.plan is not None and before.recorded is not None and not _is_computed_alike(before.plan, before.recorded):
        return "another version of magnetar stored its rows, and may have computed its expressions in another way"
    if (
        isinstance(old, CreateView)
        and isinstance(new, CreateView)
        and old.emit_on_window_close != new.emit_on_window_close
    ):
        return "EMIT ON WINDOW CLOSE"
    if isinstance(old, CreateView) and isinstance(new, CreateView) and old.vnode_hash != new.vnode_hash:
        return f"vnode.hash = '{new.vnode_hash}' places its rows in other vnodes"
    text = "" if after.plan is None else explain(after.plan)
    for name in after.reads:
        used = [column for column in altered.get(name.lower(), ()) if re.search(rf"\b{re.escape(column)}\b", text)]
        if used:
            return f"the type of {name}.{used[0]} is another one"
    return ""


def _is_computed_alike(plan: Plan, recorded: str) -> bool:
    """Whether rows that were stored mean what this plan would compute. Manifests of versions before 2026-11-25 do not say by which plan
    theirs were: what computes nothing, columns and comparisons of them, means the same in all of them."""
    return recorded == fingerprint(plan) if recorded else all(_PLAIN.fullmatch(text) for text in _texts(plan))


_PLAIN: Final = re.compile(r"\*|(?:[\w.\s<>=!]|'[^']*'|`[^`]*`|\"[^\"]*\")*")


def _texts(node: object) -> Iterable[str]:
    """All texts of a plan: names, and expressions in Spark SQL."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, tuple):
        for each in node:
            yield from _texts(each)
    elif is_dataclass(node):
        for each in fields(node):
            if each.name != "kind":
                yield from _texts(getattr(node, each.name))


def rebuilds(catalog: Catalog, unfit: dict[str, str]) -> tuple[Change, ...]:
    """Of views whose stored rows do not fit (by name: why), and of whatever reads them."""
    found: list[Change] = []
    why = dict(unfit)
    for name, entry in catalog.entries.items():
        below = next((each for each in entry.reads if each in why), None)
        if name not in why and below is not None:
            why[name] = f"{below}, which it reads, is built again"
        if name in why and entry.kind != "VIEW":
            found.append(Change("rebuild", entry.kind, name, why[name]))
    return tuple(found)


def _source_reason(old: CreateSource, new: CreateSource) -> str:
    if _chosen(old.options, _TOPICS) != _chosen(new.options, _TOPICS):
        return "it reads another topic"
    if (old.format.format, old.format.encode) != (new.format.format, new.format.encode):
        return "FORMAT ... ENCODE"
    if [key.lower() for key in old.primary_key] != [key.lower() for key in new.primary_key]:
        return "its primary key is another one"
    if (old.watermark and old.watermark.column) != (new.watermark and new.watermark.column):
        return "its watermark is of another column"
    if new.table and (old.columns, old.includes) != (new.columns, new.includes):
        return "its columns are others, and its rows are stored with them"
    return ""


def _altered_columns(before: Entry, after: Entry) -> set[str]:
    """The names of a source's columns that are gone or are computed or typed in another way."""
    old, new = before.statement, after.statement
    if not isinstance(old, CreateSource) or not isinstance(new, CreateSource) or not old.columns:
        return set()
    now: dict[str, object] = {column.name.lower(): _meaning(column) for column in new.columns}
    now |= {include.name.lower(): (include.kind, include.header) for include in new.includes}
    was: dict[str, object] = {column.name.lower(): _meaning(column) for column in old.columns}
    was |= {include.name.lower(): (include.kind, include.header) for include in old.includes}
    return {name for name, meaning in was.items() if now.get(name) != meaning}


def _meaning(column: ColumnDefinition) -> tuple[str | None, str | None]:
    return column.type, column.generated


def _difference(before: Entry, after: Entry) -> str:
    """What changes in an object that keeps its state; empty for nothing that anybody sees."""
    old, new = before.statement, after.statement
    parts: list[str] = []
    if isinstance(old, CreateSource | CreateSink) and isinstance(new, CreateSource | CreateSink):
        parts += _options(old.options, new.options)
    if isinstance(old, CreateSource) and isinstance(new, CreateSource):
        had = {column.name.lower() for column in old.columns} | {include.name.lower() for include in old.includes}
        has = [column.name for column in new.columns] + [include.name for include in new.includes]
        parts += [f"new column {name}" for name in has if name.lower() not in had]
        parts += [f"column {name} goes" for name in sorted(had - {name.lower() for name in has})]
        parts += [
            f"column {name} is another one"
            for name in sorted(_altered_columns(before, after) & {n.lower() for n in has})
        ]
        parts += _options(old.format.options, new.format.options)
        if old.watermark != new.watermark:
            parts.append("the delay of its watermark")
    if isinstance(old, CreateSink) and isinstance(new, CreateSink) and old.format != new.format:
        parts.append("FORMAT ... ENCODE, from the next change on")
    if after.kind == "VIEW" and before.plan != after.plan:
        parts.append("its query is another one")
    if isinstance(old, CreateView) and isinstance(new, CreateView) and old.late_rows != new.late_rows:
        parts.append(f"late_rows = '{new.late_rows}'")
    if isinstance(old, CreateView) and isinstance(new, CreateView) and old.on_error != new.on_error:
        parts.append(f"on.error = '{new.on_error}'")
    if before.comments != after.comments:
        parts.append("its comment")
    return ", ".join(parts)


def _options(old: Options, new: Options) -> Iterable[str]:
    """Those that differ. No value is shown that may be a credential, and none where only the manifest left a credential out."""
    was = {name.lower(): value for name, value in old.redacted().items()}
    now = {name.lower(): value for name, value in new.redacted().items()}
    for name in sorted({*was, *now}):
        if was.get(name) == now.get(name):
            continue
        if name in _BEGINNINGS:
            yield f"{name}, which counts only where a source has not begun"
        else:
            yield f"{name} = '{now[name]}'" if name in now else f"{name} goes"


def _chosen(options: Options, names: Iterable[str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items() if name.lower() in names}


def applied(known: Catalog, statements: Iterable[Statement]) -> Catalog:
    """The catalog after these statements. What it has already may be defined anew, once; whatever reads it is planned again.

    Raises CatalogError, PlanRefusedError.
    """
    given = list(statements)
    for each in renames(known, given):
        known = known.renamed(each)
        given.remove(each)
    builder = _Builder(
        known, [each.name.lower() for each in given if isinstance(each, CreateSource | CreateView | CreateSink)]
    )
    for statement in given:
        builder.take(statement)
    builder.catalog.check_indexes()
    return builder.catalog


class _Builder:
    """`orphans`: readers of what was defined anew that the statements define as well, further down."""

    def __init__(self, known: Catalog, names: list[str]) -> None:
        self.catalog = known
        self._later = names
        self._made: set[str] = set()
        self._orphans: dict[str, Entry] = {}

    def take(self, statement: Statement) -> None:
        match statement:
            case CreateSource() | CreateView() | CreateSink():
                self._create(statement)
            case Drop():
                self.catalog = self.catalog.drop(statement)
            case Rename(name=old, to=new):
                if _entry(self.catalog, old) is not None:
                    self.catalog = self.catalog.renamed(statement)
                elif _entry(self.catalog, new) is None and new.lower() not in self._later:
                    raise CatalogError(f"ALTER ... RENAME: neither {old} nor {new} exists")
            case CreateFunction():
                self.catalog = self.catalog.with_function(statement)
            case CreateIndex():
                self.catalog = self.catalog.with_index(statement)
            case Comment():
                self.catalog = self.catalog.commented(statement)
            case SetParallelism():
                self.catalog = self.catalog.set_parallelism(statement)
            case AlterOptions():
                self._define(self.catalog.altered(statement))

    def _create(self, statement: CreateSource | CreateView | CreateSink) -> None:
        key = statement.name.lower()
        self._later.remove(key)
        if key in self._made or _entry(self.catalog, key) is None:
            self.catalog = self.catalog.create(statement)
        elif not statement.if_not_exists:
            self._define(statement)
        if (before := self._orphans.pop(key, None)) is not None:
            self._keep_units(before)
        self._made.add(key)

    def _define(self, statement: CreateSource | CreateView | CreateSink) -> None:
        """In place of what has the name. Its readers that nobody defines anew are planned again over it."""
        before = self.catalog.find(statement.name)
        if identity(before.statement) == identity(statement):
            self.catalog = self.catalog.create(statement)
            return
        name = before.statement.name
        readers = {reader: self.catalog.entries[reader] for reader in self.catalog.readers(name)}
        kept = {n: e for n, e in self.catalog.entries.items() if n != name and n not in readers}
        self.catalog = replace(self.catalog, entries=kept)
        self.catalog = self.catalog.create(replace(statement, name=name))
        self._keep_units(before)
        for reader, entry in readers.items():
            if reader.lower() in self._later:
                self._orphans[reader.lower()] = entry
            else:
                self.catalog = self.catalog.create(entry.statement)
                self._keep_units(entry)

    def _keep_units(self, before: Entry) -> None:
        """And the comments on what is still there."""
        name = before.statement.name
        found = _entry(self.catalog, name)
        if found is not None and before.comments:
            there = ("", *map(str.lower, found.columns or before.comments))
            kept = {column: text for column, text in before.comments.items() if column in there}
            found = replace(found, comments=kept)
            self.catalog = replace(self.catalog, entries={**self.catalog.entries, found.statement.name: found})
        if (
            found is not None
            and found.kind == "MATERIALIZED VIEW"
            and (before.adaptive or before.parallelism is not None)
        ):
            self.catalog = self.catalog.set_parallelism(SetParallelism(name, before.parallelism))
