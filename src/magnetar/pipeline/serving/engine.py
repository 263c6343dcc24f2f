"""DuckDB as the engine of queries over the views of one pipeline: it sees the rows of one epoch that a query names, and nothing else.

Each query runs on a connection of its own, so that a result can be read in pieces while others run. The engine can neither open files nor
reach the network nor change its settings; what it may use of memory and threads is shared by all queries.
"""

from __future__ import annotations

import logging
import re
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import duckdb
import polars as pl
import pyarrow as pa

from magnetar.pipeline.errors import CatalogError, DamagedStateError, PipelineError, SqlError, UnknownEpochError
from magnetar.pipeline.serving.reader import Snapshot, Views, ViewTooLargeError
from magnetar.pipeline.serving.sql.catalog_rows import IndexEntry, ViewEntry, base_statements, catalog_tables
from magnetar.pipeline.serving.sql.postgres_macros import macro_statements
from magnetar.pipeline.serving.sql.system_catalog import SCHEMA
from magnetar.pipeline.serving.sql.translate import Context, PlainView, Query, QueryError, Relation, Slot, translate
from magnetar.pipeline.serving.wire.types import BY_NAME, PgType, of_duckdb
from magnetar.pipeline.state.manifest import Manifest
from magnetar.pipeline.views.scan.keys import key_rows
from magnetar.pipeline.views.scan.stored_views import table_ids

if TYPE_CHECKING:
    from magnetar.pipeline.sql.statements import CreateIndex, CreateSource

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of statements that it does not know, which are refused

MEMORY_MB: Final = 1024
"""What all queries together may use besides the rows in memory; a query above it fails with 53200."""

THREADS: Final = 2

BATCH_ROWS: Final = 2048

_EXPLAIN_WIDTH: Final = 120

PLAIN_VIEW_IDS: Final = 1 << 27
"""Views without a table get numbers from here on, by their names: the same on every connection."""


@dataclass(frozen=True, slots=True)
class Column:
    """Of a result. `modifier`: PostgreSQL's, -1 for none."""

    name: str
    kind: PgType
    modifier: int


class Result:
    """Rows of a query, read once, in batches. Not for several threads at a time; `cancel` is for any."""

    def __init__(self, connection: Any, relation: Any, columns: tuple[Column, ...], epoch: int) -> None:
        self.columns = columns
        self.epoch = epoch
        self._connection = connection
        self._relation = relation
        self._reader: Any = None

    def batches(self, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Raises QueryError."""
        try:
            self._open(rows)
            yield from (batch for batch in self._reader if batch.num_rows)
        except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
            raise as_query_error(error) from error

    def schema(self) -> pa.Schema:
        """Of the batches. Raises QueryError."""
        try:
            self._open(BATCH_ROWS)
            return self._reader.schema
        except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
            raise as_query_error(error) from error

    def _open(self, rows: int) -> None:
        if self._reader is None:
            self._reader = self._relation.to_arrow_reader(rows)

    def close(self) -> None:
        self._reader = self._relation = None
        with suppress(
            duckdb.Error
        ):  # busy in another thread, whose query was cancelled: it goes when that thread lets it go
            self._connection.close()

    def cancel(self) -> None:
        """What runs fails with 57014."""
        self._connection.interrupt()


class Engine:
    """`database`: the pipeline's name, as clients see it."""

    def __init__(self, views: Views, database: str, memory_mb: int = MEMORY_MB, threads: int = THREADS) -> None:
        self.views = views
        self.database = database
        self._lock = threading.Lock()
        self._memory_mb = memory_mb
        self._threads = threads
        self._duckdb = self._open()
        self._defined: set[str] = set()
        self._catalog_of: Any = None

    def _open(self) -> Any:
        settings: dict[str, Any] = {
            "memory_limit": f"{self._memory_mb}MB",
            "threads": self._threads,
            "integer_division": True,
            "autoload_known_extensions": False,
            "autoinstall_known_extensions": False,
            "allow_community_extensions": False,
            "temp_directory": "",
            "max_expression_depth": 250,
        }
        opened = duckdb.connect(":memory:", config=settings)
        for statement in (
            *macro_statements(),
            "SET TimeZone = 'UTC'",
            "SET python_enable_replacements = false",
            "SET enable_external_access = false",
            "SET lock_configuration = true",
        ):
            opened.execute(statement).fetchall()
        return opened

    def close(self) -> None:
        with suppress(duckdb.Error):  # a cancelled query is still leaving it, as the process ends
            self._duckdb.close()

    def snapshot(self, epoch: int | None = None) -> Snapshot:
        """Of the newest epoch, or an older one that is kept. Raises QueryError."""
        try:
            return self.views.newest() if epoch is None else self.views.at_epoch(epoch)
        except PipelineError as error:
            raise as_query_error(error) from error

    def translate(
        self,
        text: str,
        context: Context,
        types: Sequence[int] = (),
        dialect: str = "postgres",
        snapshot: Snapshot | None = None,
        keyed: str = "",
    ) -> Query:
        """`keyed`: the table that is read with the key that nobody sees. Raises QueryError."""
        seen = snapshot if snapshot is not None else self.snapshot()
        text = self._written_out(text, seen.manifest)

        def columns(name: str) -> pa.Schema | None:
            try:
                return seen.columns(name, keyed=name.lower() == keyed.lower())
            except CatalogError as error:
                if any(known.lower() == name.lower() for known in table_ids(seen.manifest)) and empty(name) is None:
                    raise QueryError("55000", str(error)) from None
                return None

        def empty(name: str) -> PlainView | None:
            found = self.relation(name, seen)
            if found is None or isinstance(found, str) or not found.is_written:
                return None
            from magnetar.pipeline.serving.sql.writes import empty_table  # a query from a cold shell does without

            return PlainView(found.name, empty_table(found))

        def definition(name: str) -> PlainView | None:
            view = plain_views(seen.manifest).get(name.lower())
            return empty(name) if view is None else replace(view, text=self._written_out(view.text, seen.manifest))

        query = translate(text, columns, context, types, dialect, definition)
        if not keyed:
            return query
        relations = [replace(each, keyed=each.view.lower() == keyed.lower()) for each in query.relations]
        return replace(query, relations=tuple(relations))

    def _written_out(self, text: str, manifest: Manifest) -> str:
        """With what stands for calls of the pipeline's functions; those in Python are made known to DuckDB. Raises QueryError."""
        catalog = (str(item["statement"]) for item in manifest.views.get("catalog", []))
        made = tuple(statement for statement in catalog if _is_function(statement))
        if not made:
            return text
        from magnetar.pipeline.serving.python_functions import define
        from magnetar.pipeline.sql.user_functions import expanded

        try:
            functions = _functions(made)
            found = expanded(text, functions)
        except SqlError as error:
            raise QueryError("42601", str(error).partition(": ")[2]) from None
        with self._lock:
            self._defined |= define(self._duckdb, found, functions.values(), self._defined)
        return found

    def relation(self, name: str, snapshot: Snapshot) -> CreateSource | str | None:
        """The table or source of that name; of something else what it is, None when there is none."""
        for item in snapshot.manifest.views.get("catalog", []):
            if str(item["name"]).lower() == name.lower() and not _is_function(str(item["statement"])):
                return _table_of(str(item["statement"]))
        return None

    def columns_of(self, view: PlainView, snapshot: Snapshot) -> pa.Schema:
        """Of a view that keeps no rows. Raises QueryError where it cannot be read."""
        quoted = view.name.replace('"', '""')
        query = self.translate(f'SELECT * FROM "{quoted}"', Context(database=self.database), snapshot=snapshot)
        connection = self._duckdb.cursor()
        try:
            for relation in query.relations:
                connection.register(relation.name, snapshot.columns(relation.view).empty_table())
            schema: pa.Schema = self._bound(connection, query, []).to_arrow_reader(1).schema
            return schema
        except (duckdb.Error, PipelineError) as error:
            raise as_query_error(error) from error
        finally:
            connection.close()

    def describe(self, query: Query, snapshot: Snapshot) -> tuple[Column, ...]:
        """The columns of a query's result, without running it. Raises QueryError."""
        connection = self._connection(query, snapshot)
        try:
            for relation in query.relations:
                connection.register(relation.name, snapshot.columns(relation.view, keyed=relation.keyed).empty_table())
            return _columns(self._bound(connection, query, [None] * len(query.parameters)), query)
        except (duckdb.Error, PipelineError) as error:
            raise as_query_error(error) from error
        finally:
            connection.close()

    def run(self, query: Query, values: Mapping[int, Any], snapshot: Snapshot) -> Result:
        """`values` by the parameters' numbers. Nothing is read by the engine before the result is. Raises QueryError."""
        connection = self._connection(query, snapshot)
        try:
            for relation in query.relations:
                keys = _keys(snapshot, relation, values)
                where = None if keys is not None else _looked_up(snapshot, relation, values)
                connection.register(
                    relation.name, snapshot.rows(relation.view, keys, keyed=relation.keyed, where=where)
                )
            given = [values.get(parameter.number) for parameter in query.parameters]
            found = self._bound(connection, query, given)
            return Result(connection, found, _columns(found, query), snapshot.manifest.epoch)
        except (duckdb.Error, PipelineError, MemoryError) as error:
            connection.close()
            raise as_query_error(error) from error
        except BaseException:
            connection.close()
            raise

    def explain(self, query: Query, snapshot: Snapshot) -> list[str]:
        """Which rows are read, and DuckDB's plan. Raises QueryError."""
        lines = [f"Epoch {snapshot.manifest.epoch}"]
        for relation in query.relations:
            state = snapshot.state(relation.view)
            keys = _keys(snapshot, relation, {})
            slots = any(isinstance(value, Slot) for _, values in relation.equal for value in values)
            where = None if keys is not None else _looked_up(snapshot, relation, {})
            index = "" if where is None else _index_of(snapshot, relation.view, where[0])
            by = (
                f"by index {index}"
                if index
                else "by key"
                if keys is not None
                else "by key or whole, as the parameters are"
                if slots
                else "whole"
            )
            place = "from memory" if state.table.table_id in snapshot.held else f"from {len(state.runs)} runs"
            lines.append(f"Read {relation.view} {by}, {place}: {sum(run.rows for run in state.runs)} stored rows")
        if not query.parameters:
            result = self.run(query, {}, snapshot)
            try:
                plan = str(result._relation.explain())
            finally:
                result.close()
            lines += [line.rstrip()[:_EXPLAIN_WIDTH] for line in plan.splitlines() if line.strip()]
        return lines

    def _connection(self, query: Query, snapshot: Snapshot) -> Any:
        with self._lock:
            if query.catalog:
                self._fill_catalog(snapshot)
            return self._duckdb.cursor()

    def _bound(self, connection: Any, query: Query, values: list[Any]) -> Any:
        found = duckdb.extract_statements(query.sql)
        if len(found) != 1 or found[0].type != duckdb.StatementType.SELECT:
            raise QueryError("25006", "only queries are answered")
        return connection.sql(query.sql, params=values or None)

    def _fill_catalog(self, snapshot: Snapshot) -> None:
        views = snapshot.manifest.views
        seen = (views.get("catalog"), views.get("columns"), views.get("tables"), sorted(snapshot.manifest.tables))
        if seen == self._catalog_of:
            return
        connection = self._duckdb.cursor()
        try:
            if self._catalog_of is None:
                for statement in base_statements():
                    connection.execute(statement).fetchall()
            connection.execute("BEGIN").fetchall()
            entries = [*view_entries(snapshot), *self._plain_entries(snapshot)]
            for name, rows in catalog_tables(self.database, entries).items():
                connection.execute(f'DELETE FROM {SCHEMA}."{name}"').fetchall()
                connection.register("_new", rows)
                connection.execute(f'INSERT INTO {SCHEMA}."{name}" BY NAME SELECT * FROM _new').fetchall()
            connection.execute("COMMIT").fetchall()
            self._catalog_of = seen
        finally:
            connection.close()

    def _plain_entries(self, snapshot: Snapshot) -> list[ViewEntry]:
        """Of the views that keep no rows, as far as they can be read: one over a source alone cannot."""
        comments = comments_of(snapshot.manifest)
        found, taken = [], set[int]()
        for view in plain_views(snapshot.manifest).values():
            number = PLAIN_VIEW_IDS + zlib.crc32(view.name.encode()) % PLAIN_VIEW_IDS
            while number in taken:
                number += 1
            taken.add(number)
            with suppress(QueryError):
                said = comments.get(view.name.lower(), {})
                columns = self.columns_of(view, snapshot)
                found.append(ViewEntry(view.name, number, "v", columns, (), view.text, comments=said))
        return found


def comments_of(manifest: Manifest) -> dict[str, Mapping[str, str]]:
    """Those of COMMENT ON, by lower-case name of what they are of."""
    items = manifest.views.get("catalog", [])
    return {str(item["name"]).lower(): item["comments"] for item in items if item.get("comments")}


def plain_views(manifest: Manifest) -> dict[str, PlainView]:
    """The views that keep no rows, by their names in lower case."""
    found = {}
    for item in manifest.views.get("catalog", []):
        text = _query_of_view(str(item["statement"]))
        if text is not None:
            found[str(item["name"]).lower()] = PlainView(str(item["name"]), text)
    return found


@lru_cache(maxsize=1000)
def _query_of_view(statement: str) -> str | None:
    """What stands behind CREATE VIEW name AS; None for what is another statement."""
    if not re.match(r"\s*CREATE\s+VIEW\b", statement, re.IGNORECASE):
        return None
    # a query from a cold shell does without them where there is no such view
    from magnetar.pipeline.sql.parser import parse_one
    from magnetar.pipeline.sql.statements import CreateView

    parsed = parse_one(statement)
    return parsed.query.text if isinstance(parsed, CreateView) else None


def _is_function(statement: str) -> bool:
    return re.match(r"\s*CREATE\s+FUNCTION\b", statement, re.IGNORECASE) is not None


@lru_cache(maxsize=100)
def _functions(statements: tuple[str, ...]) -> Mapping[str, Any]:
    from magnetar.pipeline.sql.catalog import Catalog

    return Catalog.from_plain([{"statement": text} for text in statements]).functions


@lru_cache(maxsize=1000)
def _table_of(statement: str) -> CreateSource | str:
    """The table or source that a statement creates, or the words for what else it does."""
    found = re.match(r"\s*CREATE\s+(MATERIALIZED VIEW|VIEW|SINK|FUNCTION|INDEX)\b", statement, re.IGNORECASE)
    if found is not None:
        return found[1].lower()
    from magnetar.pipeline.sql.parser import parse_one

    parsed: Any = parse_one(statement)
    created: CreateSource = parsed
    return created


def view_entries(snapshot: Snapshot) -> list[ViewEntry]:
    """What has rows, as the system catalogs tell of it."""
    texts = {str(item["name"]): str(item["statement"]) for item in snapshot.manifest.views.get("catalog", [])}
    comments = comments_of(snapshot.manifest)
    found = []
    for name, table_id in table_ids(snapshot.manifest).items():
        if table_id not in snapshot.manifest.tables:
            continue
        state, columns = snapshot.state(name), snapshot.columns(name)
        key = state.table.key if set(state.table.key) <= set(columns.names) else ()
        text = texts.get(name, "")
        kind = "r" if re.match(r"\s*CREATE\s+TABLE\b", text, re.IGNORECASE) else "m"
        definition = re.split(r"\bAS\b\s*", text, maxsplit=1, flags=re.IGNORECASE)[-1] if kind == "m" else text
        size, rows = sum(run.size_bytes for run in state.runs), sum(run.rows for run in state.runs)
        made = tuple(
            IndexEntry(each.name, tuple(_spelled(each.columns, columns)), tuple(_spelled(each.descending, columns)))
            for each in indexes(snapshot.manifest)
            if each.relation.lower() == name.lower()
        )
        said = comments.get(name.lower(), {})
        found.append(ViewEntry(name, table_id, kind, columns, key, definition, size, rows, made, said))
    return found


def _spelled(names: Sequence[str], columns: pa.Schema) -> Iterator[str]:
    """As the columns are."""
    for name in names:
        yield from (each for each in columns.names if each.lower() == name.lower())


_VECTORS: Final = ("indkey", "indoption", "indclass", "indcollation")
"""Columns of catalogs that clients read as `1 2`, not as `{1,2}`."""


def _columns(relation: Any, query: Query) -> tuple[Column, ...]:
    names = query.names if query.names is not None and len(query.names) == len(relation.types) else relation.columns
    found = []
    for name, kind in zip(names, relation.types, strict=True):
        vector = query.catalog and name in _VECTORS and str(kind) in ("SMALLINT[]", "UINTEGER[]")
        found.append(Column(name, *((BY_NAME["int2vector"], -1) if vector else of_duckdb(str(kind)))))
    return tuple(found)


def _keys(snapshot: Snapshot, relation: Relation, values: Mapping[int, Any]) -> pa.Table | None:
    """The keys that the query says it wants, as far as it does."""
    table = snapshot.state(relation.view).table
    found = {}
    for column, wanted in relation.equal:
        if column not in table.key or column in found:
            continue
        kind = table.schema.field(column).type
        typed = []
        for value in wanted:
            if isinstance(value, Slot):
                value = values.get(value.number)
            value = _typed(value, kind)
            if value is None:
                break
            typed.append(value)
        else:
            try:
                # not pa.array, which imports pandas: a third of a second for who asks once
                found[column] = pl.Series(typed).to_arrow().cast(kind)
            except (pa.ArrowException, ValueError, OverflowError, TypeError):
                continue
    return key_rows(table, found) if found else None


def indexes(manifest: Manifest) -> tuple[CreateIndex, ...]:
    """Of all tables and views."""
    found = (_index_statement(str(item["statement"])) for item in manifest.views.get("catalog", []))
    return tuple(each for each in found if each is not None)


@lru_cache(maxsize=1000)
def _index_statement(statement: str) -> CreateIndex | None:
    if not re.match(r"\s*CREATE\s+INDEX\b", statement, re.IGNORECASE):
        return None
    from magnetar.pipeline.sql.parser import parse_one

    parsed: Any = parse_one(statement)
    made: CreateIndex = parsed
    return made


def _index_of(snapshot: Snapshot, view: str, column: str) -> str:
    """The name of the index that begins with that column; empty when there is none."""
    for index in indexes(snapshot.manifest):
        if index.relation.lower() == view.lower() and index.columns[0].lower() == column.lower():
            return index.name
    return ""


def _looked_up(snapshot: Snapshot, relation: Relation, values: Mapping[int, Any]) -> tuple[str, list[Any]] | None:
    """The column of an index, and what the query says it has to be equal to one of."""
    for column, wanted in relation.equal:
        if not _index_of(snapshot, relation.view, column):
            continue
        kind = snapshot.state(relation.view).table.schema.field(column).type
        given = (values.get(value.number) if isinstance(value, Slot) else value for value in wanted)
        typed = [_typed(value, kind) for value in given]
        if all(value is not None and _fits(value, kind) for value in typed):
            return column, typed
    return None


def _fits(value: Any, kind: Any) -> bool:
    """Whether a number is one of the column's type; one that is not is equal to no row, which a scan finds out."""
    return not pa.types.is_integer(kind) or -(1 << (kind.bit_width - 1)) <= value < 1 << (kind.bit_width - 1)


def _typed(value: Any, kind: Any) -> Any:
    """A value in the column's type, where being equal to it means the same in Python; else None."""
    if pa.types.is_integer(kind):
        if isinstance(value, str):
            return int(value) if re.fullmatch(r"-?[0-9]{1,19}", value) else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return value if isinstance(value, str) else None
    if pa.types.is_date32(kind) and isinstance(value, str):
        try:
            return date.fromisoformat(value) if re.fullmatch(r"\d{4}-\d\d-\d\d", value) else None
        except ValueError:
            return None
    return value if pa.types.is_boolean(kind) and isinstance(value, bool) else None


_CODES: Final = (
    (duckdb.InterruptException, "57014"),
    (duckdb.OutOfMemoryException, "53200"),
    (duckdb.ParserException, "42601"),
    (duckdb.ConversionException, "22P02"),
    (duckdb.OutOfRangeException, "22003"),
    (duckdb.PermissionException, "42501"),
    (duckdb.NotImplementedException, "0A000"),
    (duckdb.TypeMismatchException, "42804"),
)

_OF_CONVERSION: Final = (
    (r"out of range for the destination type|value is out of range!|to DECIMAL\(", "22003"),
    (r"(date|time|timestamp) field value out of range", "22008"),
    (r"invalid (date|time|timestamp) field", "22007"),
)
"""Of a value that its type does not take, where PostgreSQL knows more than 22P02."""

_BY_TEXT: Final = (
    (r"Python exception occurred while executing the UDF", "38000"),
    (r"^Catalog Error: Table .* does not exist", "42P01"),
    (r"Function with name .* does not exist", "42883"),
    (r"No function matches", "42883"),
    (r"[Rr]eferenced column .* not found|does not have a column", "42703"),
    (r"must appear in the GROUP BY", "42803"),
    (r"[Aa]mbiguous", "42702"),
    (r"[Rr]eferenced table .* not found", "42P01"),
    (r"Type with name .* does not exist", "42704"),
    (r"Division by zero", "22012"),
    (r"out of range|[Oo]verflow", "22003"),
    (r"Cannot compare|Cannot mix|Could not choose", "42804"),
)


def as_query_error(error: BaseException) -> QueryError:
    """What a client is told, with SQLSTATE."""
    if isinstance(error, QueryError):
        return error
    if isinstance(error, PipelineError):
        codes = (
            (UnknownEpochError, "72000"),
            (ViewTooLargeError, "53200"),
            (CatalogError, "42P01"),
            (DamagedStateError, "XX001"),
        )
        return QueryError(next((code for kind, code in codes if isinstance(error, kind)), "58000"), str(error))
    if isinstance(error, MemoryError):
        return QueryError("53200", "out of memory")
    text = str(error)
    code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    if code == "22P02":
        code = next((better for pattern, better in _OF_CONVERSION if re.search(pattern, text)), code)
    code = code or next((code for pattern, code in _BY_TEXT if re.search(pattern, text)), None)
    if "INTERRUPT" in text.upper()[:60]:
        code = "57014"
    if code == "38000":
        return QueryError(code, text.partition("PythonFunctionError: ")[2].strip() or text)
    if code == "57014":
        return QueryError(code, "canceling statement due to user request")
    first, _, rest = text.partition("\n")
    if code == "22012":
        return QueryError(code, "division by zero")
    first = re.sub(r"^[A-Z][A-Za-z -]* Error: ", "", first).strip()
    hint = next(
        (line.strip() for line in rest.splitlines() if line.startswith(("Did you mean", "Candidate", "Either"))), ""
    )
    return QueryError(code or "42000", first or "the query failed", hint)
