"""What exists in a pipeline: sources, views, sinks, and who reads from whom. A value: each change gives a new catalog."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from magnetar.pipeline.errors import CatalogError, SqlError
from magnetar.pipeline.sql.expressions import relation_names, with_relation_renamed
from magnetar.pipeline.sql.options import Options
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.plan import Plan, Scan, explain, output_kinds, output_names, sources
from magnetar.pipeline.sql.planner import plan_query
from magnetar.pipeline.sql.printer import print_statement, quote
from magnetar.pipeline.sql.python_functions import called_name
from magnetar.pipeline.sql.scope import Columns
from magnetar.pipeline.sql.statements import (
    ROW_KEY,
    AlterOptions,
    Comment,
    CreateFunction,
    CreateIndex,
    CreateSink,
    CreateSource,
    CreateView,
    Drop,
    ObjectKind,
    Query,
    Rename,
    SetParallelism,
    Show,
)
from magnetar.pipeline.sql.typed import kind_of_type
from magnetar.pipeline.sql.user_functions import calls, checked, expanded

_ADDRESSES: Final = ("service.url", "admin.url", "pulsar.client.")

ADAPTIVE: Final = "adaptive"
"""In place of a number of units, in a manifest."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object. `plan` is None for a source, `columns` when only the topic's schema knows them; `parallelism` None and not `adaptive`:
    nobody said."""

    statement: CreateSource | CreateView | CreateSink
    plan: Plan | None = None
    columns: tuple[str, ...] | None = None
    parallelism: int | None = None
    adaptive: bool = False
    kinds: Mapping[str, str | None] = field(default_factory=dict, compare=False, repr=False)
    """The sorts of values of its columns, by lower-case name, where they are known."""
    through: tuple[str, ...] = ()
    """The views that its query names and that are not materialized; the plan reads what they read."""
    recorded: str | None = field(default=None, compare=False, repr=False)
    """The `fingerprint` of the plan by which the rows of a manifest were computed; empty when the manifest says none, None without one."""
    comments: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Of COMMENT ON: by lower-case column, under the empty name that of the object."""

    @property
    def kind(self) -> ObjectKind:
        if isinstance(self.statement, CreateSource):
            return "TABLE" if self.statement.table else "SOURCE"
        if isinstance(self.statement, CreateView):
            return "MATERIALIZED VIEW" if self.statement.materialized else "VIEW"
        return "SINK"

    @property
    def reads(self) -> tuple[str, ...]:
        return () if self.plan is None else sources(self.plan)


@dataclass(frozen=True)
class Catalog:
    """Entries in the order they were created, which is an order of dependency: nothing reads from what comes later."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    functions: Mapping[str, CreateFunction] = field(default_factory=dict)
    """Of CREATE FUNCTION, by lower-case name."""
    indexes: Mapping[str, CreateIndex] = field(default_factory=dict)
    """Of CREATE INDEX, by lower-case name."""

    def find(self, name: str) -> Entry:
        """Names are compared without case. CatalogError when there is none."""
        key = self._key(name)
        if key is None:
            raise CatalogError(f"{name} does not exist; there is {', '.join(self.entries) or 'nothing yet'}")
        return self.entries[key]

    def create(self, statement: CreateSource | CreateView | CreateSink) -> Catalog:
        """With the new object. The same one again changes only its credentials and addresses; a different one is a CatalogError
        (`changes.applied` defines what was there before anew)."""
        key = self._key(statement.name)
        if key is None:
            return replace(self, entries={**self.entries, statement.name: self._entry(statement)})
        known = self.entries[key]
        if identity(known.statement) == identity(statement):
            return replace(self, entries={**self.entries, key: replace(known, statement=statement)})
        if statement.if_not_exists:
            return self
        raise CatalogError(
            f"{known.kind} {key} is defined twice; remove one of the definitions, or choose another name"
        )

    def with_function(self, statement: CreateFunction) -> Catalog:
        """With a function, in place of one of that name; queries that call it mean the new one. SqlError, PlanRefusedError."""
        key = statement.name.lower()
        others = {name: each for name, each in self.functions.items() if name != key}
        known, made = self.functions.get(key), checked(replace(statement, if_not_exists=False), others, 1, 1)
        if known is not None and (known == made or statement.if_not_exists):
            return self
        functions = {**self.functions, key: made}
        if known is not None and known.language == made.language == "python":
            functions = _calling(functions, known, made)
        found = replace(self, functions=functions)
        if known is None:
            return found
        found = replace(found, entries={})
        for name, entry in self.entries.items():
            found = found.create(entry.statement)
            made_again = replace(
                found.entries[name],
                parallelism=entry.parallelism,
                adaptive=entry.adaptive,
                recorded=entry.recorded,
                comments=entry.comments,
            )
            found = replace(found, entries={**found.entries, name: made_again})
        return found

    def written_out(self, query: Query) -> Query:
        """With the expressions of the functions that it calls. SqlError."""
        try:
            return replace(query, text=expanded(query.text, self.functions))
        except SqlError as error:
            raise SqlError(str(error).partition(": ")[2], query.line, query.column) from None

    def drop(self, statement: Drop) -> Catalog:
        """Without it, and with CASCADE without what reads from it. CatalogError while something does, or for the wrong kind."""
        if statement.kind == "FUNCTION":
            return self._without_function(statement)
        if statement.kind == "INDEX":
            return self._without_index(statement)
        key = self._key(statement.name)
        if key is None:
            if statement.if_exists:
                return self
            if statement.name.lower() in self.functions:
                raise CatalogError(f"{statement.name} is a FUNCTION; write DROP FUNCTION {statement.name}")
            raise CatalogError(
                f"{statement.kind} {statement.name} does not exist; write DROP {statement.kind} IF EXISTS"
            )
        kind = self.entries[key].kind
        if kind != statement.kind:
            raise CatalogError(f"{key} is a {kind}; write DROP {kind} {key}")
        readers = self.readers(key)
        if readers and not statement.cascade:
            raise CatalogError(
                f"{', '.join(readers)} read from {key}; drop them first or write DROP {kind} {key} CASCADE"
            )
        kept = {name: entry for name, entry in self.entries.items() if name != key and name not in readers}
        return replace(self, entries=kept)._with_indexes_of(kept)

    def with_index(self, statement: CreateIndex) -> Catalog:
        """With an index. CatalogError for a name that is taken, and for a relation or column that is not there."""
        key = statement.name.lower()
        known = self.indexes.get(key)
        if known is not None:
            if known == replace(statement, relation=known.relation) or statement.if_not_exists:
                return self
            raise CatalogError(f"INDEX {known.name} exists and is another one; write DROP INDEX {known.name} first")
        if self._key(statement.name) is not None:
            raise CatalogError(f"{statement.name} exists already; name the index otherwise")
        entry = self.find(statement.relation)
        if entry.kind not in ("TABLE", "MATERIALIZED VIEW"):
            raise CatalogError(
                f"{statement.relation} is a {entry.kind}, which keeps no rows; an index is of a table or materialized view"
            )
        for column in (*statement.columns, *statement.include) if entry.columns is not None else ():
            if column.lower() not in {name.lower() for name in entry.columns or ()}:
                raise CatalogError(
                    f"{statement.relation} has no column {column}; it has {', '.join(entry.columns or ())}"
                )
        made = replace(statement, relation=entry.statement.name, if_not_exists=False)
        return replace(self, indexes={**self.indexes, key: made})

    def check_indexes(self) -> None:
        """CatalogError for one whose columns are gone from what it is of."""
        for index in self.indexes.values():
            columns = self.find(index.relation).columns
            gone = [name for name in index.columns if columns and name.lower() not in map(str.lower, columns)]
            if gone:
                raise CatalogError(
                    f"{index.relation} has no column {gone[0]} any more, of which {index.name} is an index; write DROP INDEX {index.name}"
                )

    def _without_index(self, statement: Drop) -> Catalog:
        key = statement.name.lower()
        if key not in self.indexes:
            if statement.if_exists:
                return self
            raise CatalogError(f"INDEX {statement.name} does not exist; write DROP INDEX IF EXISTS")
        return replace(self, indexes={name: each for name, each in self.indexes.items() if name != key})

    def _with_indexes_of(self, entries: Mapping[str, Entry]) -> Catalog:
        """Without the indexes of what is gone, as in PostgreSQL."""
        there = {name.lower() for name in entries}
        return replace(
            self, indexes={name: each for name, each in self.indexes.items() if each.relation.lower() in there}
        )

    def _without_function(self, statement: Drop) -> Catalog:
        key = statement.name.lower()
        if key not in self.functions:
            if statement.if_exists:
                return self
            raise CatalogError(f"FUNCTION {statement.name} does not exist; write DROP FUNCTION IF EXISTS")
        users = self.callers(key)
        if users and not statement.cascade:
            raise CatalogError(
                f"{', '.join(users)} use {statement.name}; drop them first or write DROP FUNCTION {statement.name} CASCADE"
            )
        gone = {name for user in users for name in (user, *self.readers(user))}
        kept = {name: entry for name, entry in self.entries.items() if name not in gone}
        functions = {name: each for name, each in self.functions.items() if name != key}
        return replace(self, entries=kept, functions=functions)._with_indexes_of(kept)

    def callers(self, function: str) -> tuple[str, ...]:
        """What calls the function of that lower-case name itself or by functions of LANGUAGE sql."""
        found = []
        for name, entry in self.entries.items():
            query = entry.statement.query if isinstance(entry.statement, CreateView) else None
            if isinstance(entry.statement, CreateSink) and isinstance(entry.statement.source, Query):
                query = entry.statement.source
            if query is not None and self._calls(query.text, function):
                found.append(name)
        return tuple(found)

    def _calls(self, text: str, function: str) -> bool:
        if calls(text, function):
            return True
        known = self.functions[function]
        return known.language == "python" and called_name(known) in expanded(text, self.functions)

    def altered(self, statement: AlterOptions) -> CreateSource | CreateView | CreateSink:
        """The statement of an object with its new options. CatalogError for an object of another kind, SqlError for an option."""
        entry = self.find(statement.name)
        if entry.kind != statement.kind:
            raise CatalogError(
                f"{statement.name} is a {entry.kind}; write ALTER {entry.kind} {statement.name} SET (...)"
            )
        known = entry.statement
        if isinstance(known, CreateView):
            return replace(
                known, late_rows=statement.late_rows or known.late_rows, on_error=statement.on_error or known.on_error
            )
        new = {name.lower() for name in statement.options}
        options = Options({**{n: v for n, v in known.options.items() if n.lower() not in new}, **statement.options})
        if known.format is not None:  # an option may stand behind ENCODE as well: the new value counts
            kept = Options({name: value for name, value in known.format.options.items() if name.lower() not in new})
            known = replace(known, format=replace(known.format, options=kept))
        return replace(known, options=options)

    def renamed(self, statement: Rename) -> Catalog:
        """The object, and what reads from it, with the new name. CatalogError for an unknown name or kind, a name that is taken,
        and a reader whose query cannot be written with it."""
        entry = self.find(statement.name)
        if entry.kind != statement.kind:
            raise CatalogError(
                f"{statement.name} is a {entry.kind}; write ALTER {entry.kind} {statement.name} RENAME TO ..."
            )
        old = entry.statement.name
        taken = self._key(statement.to)
        if taken is not None and taken != old:
            raise CatalogError(
                f"{taken} exists already; name the {statement.kind} {statement.to} in its CREATE, with the ALTER in front of it"
            )
        moved = {
            name: replace(each, relation=statement.to) if each.relation.lower() == old.lower() else each
            for name, each in self.indexes.items()
        }
        found = Catalog(functions=self.functions, indexes=moved)
        for name, each in self.entries.items():
            known = each.statement
            if name == old:
                known = replace(known, name=statement.to)
            elif old in (*each.reads, *each.through):
                known = _reading(known, old, statement.to)
            try:
                found = found.create(known)
            except SqlError as error:
                raise CatalogError(
                    f"{name} reads {old}, and its query cannot be written with the new name ({error}); define {name} anew in the file"
                ) from None
            made = found.entries[known.name]
            recorded = each.recorded
            if each.plan is not None and made.plan is not None and recorded == fingerprint(each.plan):
                recorded = fingerprint(made.plan)
            made = replace(
                made, parallelism=each.parallelism, adaptive=each.adaptive, recorded=recorded, comments=each.comments
            )
            found = replace(found, entries={**found.entries, known.name: made})
        return found

    def commented(self, statement: Comment) -> Catalog:
        """With a comment, or without the one that there was. CatalogError for an object of another kind, and for a column that is not
        there."""
        entry = self.find(statement.name)
        if statement.kind not in ("TABLE", entry.kind):
            raise CatalogError(
                f"{statement.name} is a {entry.kind}; write COMMENT ON {entry.kind} {statement.name} IS ..."
            )
        key = (statement.column or "").lower()
        if key and entry.columns is not None and key not in map(str.lower, entry.columns):
            raise CatalogError(f"{statement.name} has no column {statement.column}; it has {', '.join(entry.columns)}")
        comments = {name: text for name, text in entry.comments.items() if name != key}
        if statement.text:
            comments[key] = statement.text
        return replace(self, entries={**self.entries, entry.statement.name: replace(entry, comments=comments)})

    def set_parallelism(self, statement: SetParallelism) -> Catalog:
        """With the view's new parallelism, from the next epoch on."""
        entry = self.find(statement.view)
        if entry.kind != "MATERIALIZED VIEW":
            raise CatalogError(f"{statement.view} is a {entry.kind}; the parallelism is a materialized view's")
        name, adaptive = entry.statement.name, statement.parallelism is None
        return replace(
            self, entries={**self.entries, name: replace(entry, parallelism=statement.parallelism, adaptive=adaptive)}
        )

    def readers(self, name: str) -> tuple[str, ...]:
        """What reads from it, directly or through others, in order of dependency."""
        found = {name}
        for other, entry in self.entries.items():
            if found.intersection((*entry.reads, *entry.through)):
                found.add(other)
        return tuple(other for other in self.entries if other in found and other != name)

    def topological(self) -> tuple[str, ...]:
        """All names, each behind everything it reads from."""
        return tuple(self.entries)

    def show(self, statement: Show) -> tuple[str, ...]:
        """The names of that kind; LIKE with % and _."""
        if statement.kind == "FUNCTION":
            names = [each.name for each in self.functions.values()]
        elif statement.kind == "INDEX":
            relation = None if statement.relation is None else self.find(statement.relation).statement.name
            names = [each.name for each in self.indexes.values() if relation in (None, each.relation)]
        else:
            names = [name for name, entry in self.entries.items() if entry.kind == statement.kind]
        return tuple(name for name in names if statement.like is None or _like(name.lower(), statement.like.lower()))

    def show_create(self, name: str) -> str:
        """The statement, without credentials."""
        if self._key(name) is None and name.lower() in self.functions:
            return print_statement(self.functions[name.lower()])
        if self._key(name) is None and name.lower() in self.indexes:
            return print_statement(self.indexes[name.lower()])
        return print_statement(self.find(name).statement)

    def relations(self) -> dict[str, tuple[str, ...] | None]:
        """What a query may read, with columns where they are known."""
        return {
            name: None
            if entry.columns is None
            else Columns.of(entry.columns, entry.kinds, entry.plan if entry.kind == "VIEW" else None)
            for name, entry in self.entries.items()
            if entry.kind != "SINK"
        }

    def to_plain(self) -> list[dict[str, Any]]:
        """For the manifest's `views`: strings and numbers, without credentials."""
        functions = [
            {"name": each.name, "statement": print_statement(each), "parallelism": None}
            for each in self.functions.values()
        ]
        indexes = [
            {"name": each.name, "statement": print_statement(each), "parallelism": None}
            for each in self.indexes.values()
        ]
        return (
            functions
            + [
                {
                    "name": name,
                    "statement": print_statement(entry.statement),
                    "parallelism": ADAPTIVE if entry.adaptive else entry.parallelism,
                    **({} if entry.plan is None else {"plan": fingerprint(entry.plan)}),
                    **({"comments": dict(entry.comments)} if entry.comments else {}),
                }
                for name, entry in self.entries.items()
            ]
            + indexes
        )

    @classmethod
    def from_plain(cls, plain: list[dict[str, Any]]) -> Catalog:
        """The catalog of a manifest; credentials come back when the same statements are run again. CatalogError when it is none."""
        catalog = cls()
        for item in plain:
            statement = parse_one(str(item["statement"]))
            if isinstance(statement, CreateFunction):
                catalog = catalog.with_function(statement)
                continue
            if isinstance(statement, CreateIndex):
                catalog = replace(catalog, indexes={**catalog.indexes, statement.name.lower(): statement})
                continue
            if not isinstance(statement, CreateSource | CreateView | CreateSink):
                raise CatalogError(
                    f"the manifest holds no CREATE statement for {item['name']}; restore it from an older epoch"
                )
            catalog = catalog.create(statement)
            created = catalog.entries[statement.name]
            created = replace(created, recorded=str(item.get("plan", "")), comments=dict(item.get("comments", {})))
            catalog = replace(catalog, entries={**catalog.entries, statement.name: created})
            said = item["parallelism"]
            if said is not None:
                units = None if said == ADAPTIVE else int(said)
                catalog = catalog.set_parallelism(SetParallelism(statement.name, units))
        return catalog

    def _key(self, name: str) -> str | None:
        return next((known for known in self.entries if known.lower() == name.lower()), None)

    def _entry(self, statement: CreateSource | CreateView | CreateSink) -> Entry:
        if isinstance(statement, CreateSource):
            return Entry(statement, columns=_source_columns(statement), kinds=_source_kinds(statement))
        relations = self.relations()
        through = self._through(statement)
        if isinstance(statement, CreateView):
            plan = plan_query(self.written_out(statement.query), relations)
            if not statement.materialized and output_names(plan) is None:
                raise CatalogError(
                    f"view {statement.name}: the columns of what it reads are not known; name them instead of *"
                )
        elif isinstance(statement.source, str):
            entry = self.find(statement.source)
            if entry.kind == "SINK":
                raise CatalogError(f"{statement.source} is a SINK; a sink reads from a source or a view")
            if entry.kind == "VIEW":
                return Entry(statement, entry.plan, entry.columns, kinds=entry.kinds, through=through)
            plan = Scan(entry.statement.name)
            return Entry(statement, plan, entry.columns, kinds=entry.kinds)
        else:
            plan = plan_query(self.written_out(statement.source), relations)
        kinds = output_kinds(plan, lambda name: self.find(name).kinds)
        return Entry(statement, plan, output_names(plan), kinds=kinds, through=through)

    def _through(self, statement: CreateView | CreateSink) -> tuple[str, ...]:
        plain = {name.lower(): name for name, entry in self.entries.items() if entry.kind == "VIEW"}
        source = statement.query if isinstance(statement, CreateView) else statement.source
        if not plain:
            return ()
        named = {source.lower()} if isinstance(source, str) else relation_names(source.text)
        return tuple(name for key, name in plain.items() if key in named)


def _calling(
    functions: Mapping[str, CreateFunction], old: CreateFunction, new: CreateFunction
) -> dict[str, CreateFunction]:
    """Those of LANGUAGE sql that called the old one call the new one. CatalogError where its parameters are others."""
    found = dict(functions)
    for name, each in functions.items():
        if called_name(old) not in each.body:
            continue
        if [kind for _, kind in old.parameters] != [kind for _, kind in new.parameters] or old.returns != new.returns:
            raise CatalogError(
                f"function {each.name} calls {old.name} with its former types; write CREATE FUNCTION {each.name} anew below it"
            )
        found[name] = each.with_body(each.body.replace(called_name(old), called_name(new)))
    return found


def _reading(statement: CreateSource | CreateView | CreateSink, old: str, new: str) -> CreateView | CreateSink:
    """A view or sink that reads `new` where it read `old`."""
    assert not isinstance(statement, CreateSource)
    source = statement.query if isinstance(statement, CreateView) else statement.source
    if isinstance(source, str):
        assert isinstance(statement, CreateSink)
        return replace(statement, source=new)
    query = Query(with_relation_renamed(source.text, old, quote(new)), source.line, source.column)
    return replace(statement, query=query) if isinstance(statement, CreateView) else replace(statement, source=query)


def _source_columns(source: CreateSource) -> tuple[str, ...] | None:
    if not source.columns:
        return None
    included = (include.name for include in source.includes if include.name != ROW_KEY)
    return (*(column.name for column in source.columns), *included)


_INCLUDED_KINDS: Final = {
    "KEY": "text",
    "TIMESTAMP": "timestamptz",
    "EVENT_TIME": "timestamptz",
    "PARTITION": "int",
    "TOPIC": "text",
}


def _source_kinds(source: CreateSource) -> dict[str, str | None]:
    found = {
        column.name.lower(): None if column.type is None else kind_of_type(column.type) for column in source.columns
    }
    return found | {include.name.lower(): _INCLUDED_KINDS.get(include.kind) for include in source.includes}


def fingerprint(plan: Plan) -> str:
    """Of a plan with all its expressions: another one where this version of magnetar computes the same statement in another way."""
    return hashlib.sha256(explain(plan).encode()).hexdigest()[:32]


def identity(statement: CreateSource | CreateView | CreateSink) -> str:
    """What makes it another one: everything but credentials, how a broker is reached, and what becomes of late rows and of errors."""
    if isinstance(statement, CreateSource | CreateSink):
        kept = {name: value for name, value in statement.options.items() if not name.lower().startswith(_ADDRESSES)}
        statement = replace(statement, options=Options(kept))
    else:
        statement = replace(statement, late_rows="drop", on_error="null")
    return print_statement(replace(statement, if_not_exists=False))


def _like(name: str, pattern: str) -> bool:
    """SQL's LIKE in time of name x pattern, whatever the pattern."""
    reached = {0}
    for character in pattern:
        if character == "%":
            reached = set(range(min(reached), len(name) + 1)) if reached else set()
        else:
            reached = {at + 1 for at in reached if at < len(name) and character in ("_", name[at])}
    return len(name) in reached
