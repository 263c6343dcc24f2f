"""A query in PostgreSQL's words as one of DuckDB's, over relations that its caller registers. A decision core.

Whatever reaches DuckDB is written anew from the parsed query, so it can only be a query: it reads views of the pipeline, the system
catalogs (`sql/system_catalog`), and functions of a list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp, parse, tokenize
from sqlglot.errors import SqlglotError

from magnetar.pipeline.serving.sql import catalog_functions, postgres_functions
from magnetar.pipeline.serving.sql.differences import refusal, same_in_duckdb
from magnetar.pipeline.serving.sql.result_names import Node, cast_type, result_names
from magnetar.pipeline.serving.sql.system_catalog import INFORMATION_SCHEMA, PG_CATALOG, RELATIONS, SCHEMA
from magnetar.pipeline.serving.sql.windows import with_windows
from magnetar.pipeline.serving.wire.types import BY_NAME, BY_OID, TEXT, PgType, of_arrow

SQL_BYTES_MAX: Final = 256 * 1024
"""A longer statement is refused before it is parsed."""

PARAMETERS_MAX: Final = 65_535
"""The protocol's own bound."""

PUBLIC: Final = "public"

Columns = Callable[[str], pa.Schema | None]
"""What a view shows, by its name in any case; None when there is none."""

VIEWS_DEEP_MAX: Final = 32
"""Views that read views; a query that goes through more of them is refused."""


class QueryError(Exception):
    """A statement that is not answered. `code`: SQLSTATE. `position`: of a character, from 1; 0: unknown."""

    def __init__(self, code: str, text: str, hint: str = "", position: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.hint = hint
        self.position = position


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$number` of the query, of the type `kind`."""

    number: int
    kind: PgType


@dataclass(frozen=True, slots=True)
class Relation:
    """A view as one place of the query reads it, under a name of its own. `equal`: what its columns must be equal to one of, where the
    query says so: texts, numbers, or the number of a parameter in a `Slot`. `keyed`: with the key that nobody sees."""

    name: str
    view: str
    equal: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    keyed: bool = False


@dataclass(frozen=True, slots=True)
class Slot:
    """The value of a parameter."""

    number: int


@dataclass(frozen=True, slots=True)
class PlainView:
    """A view that keeps no rows: a name for the query `text`, which is read in its place."""

    name: str
    text: str


Definitions = Callable[[str], PlainView | None]
"""The view of that name, in any case, that keeps no rows; None when there is none."""


@dataclass(frozen=True)
class Query:
    """`sql`: DuckDB's, whose `$1`, `$2`, ... are `parameters` in that order. `types`: those of all parameters from 1 on, for the client.
    `names`: of the result's columns, where they are not those of the tables. `epoch`: AS OF EPOCH. `catalog`: it reads system catalogs."""

    sql: str
    relations: tuple[Relation, ...]
    parameters: tuple[Parameter, ...] = ()
    types: tuple[PgType, ...] = ()
    names: tuple[str, ...] | None = None
    epoch: int | None = None
    catalog: bool = False


@dataclass(frozen=True)
class Context:
    """Who asks, where: what functions like current_user tell. `settings`: those of SHOW."""

    user: str = "magnetar"
    database: str = "magnetar"
    settings: Mapping[str, str] = field(default_factory=dict)
    process: int = 0


def statements(text: str) -> list[str]:
    """The statements of a text, without those that are empty. Raises QueryError."""
    if len(text.encode(errors="replace")) > SQL_BYTES_MAX:
        raise QueryError("54000", f"the statement is longer than {SQL_BYTES_MAX} bytes")
    found, start = [], 0
    for token in _tokens(text):
        if token.text == ";" and token.token_type.name == "SEMICOLON":
            found.append(text[start : token.start].strip())
            start = token.end + 1
    found.append(text[start:].strip())
    return [part for part in found if part and _tokens(part)]


def translate(
    text: str,
    columns: Columns,
    context: Context,
    types: Sequence[int] = (),
    dialect: str = "postgres",
    definitions: Definitions = lambda name: None,
) -> Query:
    """One query. `types`: oids that the client gives its parameters, 0 where it leaves them out. Raises QueryError."""
    text, epoch = _without_epoch(text)
    tree = _parsed(text, dialect)
    try:
        return _Translation(columns, definitions, context, types).run(tree, epoch)
    except RecursionError:
        raise QueryError("54001", "the statement is nested too deeply") from None


def _tokens(text: str) -> list[Any]:
    try:
        return list(tokenize(text, read="postgres"))
    except SqlglotError as error:
        raise QueryError("42601", f"syntax error: {_first_line(error)}") from None


def _without_epoch(text: str) -> tuple[str, int | None]:
    """The text without `AS OF EPOCH n`, and the number. Behind each table or at the end it means the whole statement."""
    if re.search(r"\bepoch\b", text, re.IGNORECASE) is None:
        return text, None
    tokens, cuts, epochs = _tokens(text), [], set()
    words = [token.text.lower() for token in tokens]
    for at in range(len(tokens) - 3):
        if words[at : at + 3] == ["as", "of", "epoch"] and tokens[at].token_type.name != "STRING":
            if not words[at + 3].isdigit() or len(words[at + 3]) > 18:
                raise QueryError("42601", "AS OF EPOCH takes a whole number", position=tokens[at + 3].start + 1)
            epochs.add(int(words[at + 3]))
            cuts.append((tokens[at].start, tokens[at + 3].end + 1))
    if len(epochs) > 1:
        raise QueryError("0A000", "a statement reads one epoch; AS OF EPOCH names several")
    for start, end in reversed(cuts):
        text = text[:start] + " " + text[end:]
    return text, next(iter(epochs), None)


def _parsed(text: str, dialect: str) -> Node:
    try:
        trees = [tree for tree in parse(text, read=dialect) if tree is not None]
    except SqlglotError as error:
        raise QueryError("42601", f"syntax error: {_first_line(error)}", position=_position(text, error)) from None
    except RecursionError:
        raise QueryError("54001", "the statement is nested too deeply") from None
    if len(trees) != 1:
        raise QueryError("42601", "expected one statement")
    return trees[0]


def _first_line(error: Exception) -> str:
    first = re.sub(r"\x1b\[\d+m", "", str(error)).strip().splitlines()[:1]
    return first[0].rstrip(".") if first else "it cannot be read"


def _position(text: str, error: SqlglotError) -> int:
    details = getattr(error, "errors", None)
    if not details or not details[0].get("line"):
        return 0
    line, column = int(details[0]["line"]), int(details[0]["col"] or 1)
    before = text.splitlines(keepends=True)[: line - 1]
    return min(sum(map(len, before)) + column, len(text))


_READ_ONLY_HINT: Final = (
    "this only reads, but for INSERT, UPDATE and DELETE in psql and drivers: a view changes through its topics, its definition by the "
    "pipeline's file that is run again"
)

_NOT_QUERIES: Final = tuple(
    kind
    for kind in (
        getattr(exp, name, None) for name in ("DML", "DDL", "Command", "Into", "Pragma", "Set", "Use", "Attach", "Copy")
    )
    if kind is not None
)


class _Translation:
    """Of one query."""

    def __init__(self, columns: Columns, definitions: Definitions, context: Context, types: Sequence[int]) -> None:
        self._columns = columns
        self._definitions = definitions
        self._within: list[str] = []
        self._context = context
        self._given = types
        self._relations: list[Relation] = []
        self._schemas: dict[str, pa.Schema] = {}
        self._catalog = False

    def run(self, tree: Node, epoch: int | None) -> Query:
        query = tree.unnest() if isinstance(tree, exp.Subquery) else tree
        if not isinstance(query, exp.Select | exp.SetOperation | exp.Values | exp.Subquery):
            word = tree.name if isinstance(tree, exp.Command) else tree.sql("postgres").split(None, 1)[0]
            raise QueryError("0A000", f"{word.upper()} is not supported", _READ_ONLY_HINT)
        _check_only_queries(tree)
        names = result_names(tree)
        if reason := with_windows(tree):
            raise QueryError("42601", reason)
        for table in list(tree.find_all(exp.Table)):
            self._table(table)
        tree = self._rewritten(tree)
        self._check_functions(tree)
        types, parameters = self._parameters(tree)
        return Query(_sql(tree), tuple(self._relations), parameters, types, names, epoch, self._catalog)

    # ---- What it reads

    def _table(self, table: exp.Table) -> None:
        if not isinstance(table.this, exp.Identifier):
            if table.db.lower() == PG_CATALOG:
                table.set("db", None)
            return  # a function
        name, schema = table.name, table.db.lower()
        if table.catalog and table.catalog.lower() != self._context.database.lower():
            raise QueryError("0A000", f"cross-database references are not implemented: {table.catalog}.{schema}.{name}")
        if not schema and _is_cte(table):
            return
        if schema in ("", PUBLIC):
            shown = self._columns(name)
            if shown is not None:
                self._view(table, name, shown)
                return
            view = self._definitions(name)
            if view is not None:
                self._plain_view(table, view)
                return
        known = schema or (PG_CATALOG if name.lower() in RELATIONS[PG_CATALOG] else "")
        if known in RELATIONS and name.lower() in RELATIONS[known]:
            self._catalog = True
            own = f"{'info_' if known == INFORMATION_SCHEMA else ''}{name.lower()}"
            _replace_name(table, own, SCHEMA)
            return
        full = f"{schema}.{name}" if schema else name
        raise QueryError("42P01", f'relation "{full}" does not exist', "SHOW MATERIALIZED VIEWS lists what there is")

    def _view(self, table: exp.Table, name: str, shown: pa.Schema) -> None:
        if table.args.get("only"):
            table.set("only", None)
        relation = f"_r{len(self._relations)}"
        self._relations.append(Relation(relation, name, tuple(_conditions(table, shown))))
        self._schemas[name.lower()] = shown
        _replace_name(table, relation, None)

    def _plain_view(self, table: exp.Table, view: PlainView) -> None:
        """Its query in place of its name. The names in it are looked up before it is put there: a WITH around it does not reach into it."""
        if len(self._within) >= VIEWS_DEEP_MAX:
            raise QueryError(
                "54001", f"more than {VIEWS_DEEP_MAX} views read one another: {', '.join(self._within[:3])}, ..."
            )
        self._within.append(view.name)
        try:
            tree = _definition(view)
            _check_only_queries(tree)
            names = result_names(tree)
            for inner in list(tree.find_all(exp.Table)):
                self._table(inner)
        except QueryError as error:
            hint = error.hint
            if error.code == "42P01":
                hint = f"sources keep no rows: write CREATE MATERIALIZED VIEW {view.name}, or let it read one"
            raise QueryError(error.code, f"view {view.name} cannot be read: {error.text}", hint) from None
        finally:
            self._within.pop()
        given = table.args.get("alias")
        label = (
            given.this if given is not None and given.this is not None else exp.to_identifier(table.name, quoted=True)
        )
        columns = list(given.args.get("columns") or ()) if given is not None else []
        if not columns and names is not None and len(set(names)) == len(names):
            columns = [exp.to_identifier(name, quoted=True) for name in names]
        _without_schema(table)
        placed = exp.Subquery(this=tree, alias=exp.TableAlias(this=label, columns=columns))
        for part in ("joins", "sample", "pivots"):
            if table.args.get(part):
                placed.set(part, table.args[part])
        table.replace(placed)

    # ---- What differs

    def _rewritten(self, tree: Node) -> Node:
        """From the leaves up, so that what replaces a node holds its replaced parts."""
        context = self._context
        for node in reversed(list(tree.walk(bfs=False))):
            changed = catalog_functions.rewritten(node, context.user, context.database, context.settings)
            for rewritten in (same_in_duckdb, postgres_functions.rewritten):
                changed = rewritten(node) if changed is node else changed
            if changed is node:
                reason = refusal(node)
                if reason is not None:
                    raise QueryError("0A000", reason)
                continue
            self._catalog = self._catalog or (isinstance(changed, exp.Dot) and changed.this.name == SCHEMA)
            if node is tree:
                tree = changed
            else:
                node.replace(changed)
        return tree

    def _check_functions(self, tree: Node) -> None:
        for table in tree.find_all(exp.Table):
            function = table.this
            if isinstance(function, exp.Identifier | exp.Values):
                continue
            name = (function.name if isinstance(function, exp.Anonymous) else function.sql_name()).lower()
            if name in TABLE_FUNCTIONS:
                _name_only_column(table)
            elif table.alias and name not in REFUSED_FUNCTIONS:
                _as_row(table)
            else:
                raise QueryError("42883", f"function {name} is not supported in FROM")
        for call in tree.find_all(exp.Anonymous):
            if call.name.lower() in REFUSED_FUNCTIONS:
                raise QueryError("42883", f"function {call.name} is not supported")

    # ---- Parameters

    def _parameters(self, tree: Node) -> tuple[tuple[PgType, ...], tuple[Parameter, ...]]:
        kinds: dict[int, PgType] = {}
        places = list(tree.find_all(exp.Parameter, exp.Placeholder))
        for place in places:
            label = place.name if isinstance(place, exp.Parameter) else ""
            if not label.isdigit() or not 1 <= int(label) <= PARAMETERS_MAX:
                raise QueryError("42P02", f"there is no parameter {place.sql('postgres')}; they are $1, $2, ...")
            kind = self._inferred(place)
            if int(label) not in kinds or kinds[int(label)] is TEXT:
                kinds[int(label)] = kind or TEXT
        for number, oid in enumerate(self._given, 1):
            given = BY_OID.get(oid)
            if oid and given is None:
                raise QueryError("42704", f"the type with the oid {oid} of ${number} is not known")
            if given is not None and given.name != "unknown":
                kinds[number] = given
        order = sorted({int(place.name) for place in places})
        for place in places:
            number = int(place.name)
            value = exp.Parameter(this=exp.Literal.number(order.index(number) + 1))
            cast = _own_digits(place) if kinds[number].name == "numeric" else None
            cast = cast or exp.DataType.build(kinds[number].duckdb, dialect="duckdb")
            place.replace(exp.Cast(this=value, to=cast))
        types = tuple(kinds.get(number, TEXT) for number in range(1, max(kinds, default=0) + 1))
        return types, tuple(Parameter(number, kinds[number]) for number in order)

    def _inferred(self, place: Node) -> PgType | None:
        """What a parameter is, by what it is compared with or cast to."""
        parent = place.parent
        while isinstance(parent, exp.Paren | exp.Neg):
            place, parent = parent, parent.parent
        if isinstance(parent, exp.Cast):
            return cast_type(parent)
        if isinstance(parent, exp.Limit | exp.Offset | exp.Fetch):
            return BY_NAME["int8"]
        if isinstance(parent, exp.Any):
            above = parent.parent
            kind = self._column_type(above, parent)
            return BY_NAME.get(f"_{(kind or TEXT).name}")
        if isinstance(parent, exp.Binary | exp.In | exp.Between | exp.Tuple):
            return self._column_type(parent, place)
        return None

    def _column_type(self, parent: Node | None, place: Node) -> PgType | None:
        if parent is None or isinstance(parent, exp.Connector):
            return None
        for other in parent.iter_expressions():
            other = other.unnest()
            if other is place:
                continue
            if isinstance(other, exp.Column):
                for schema in self._schemas.values():
                    found = _field(schema, other.name)
                    if found is not None:
                        return of_arrow(found.type)[0]
            if isinstance(other, exp.Cast):
                return cast_type(other)
            if isinstance(other, exp.Literal) and not other.is_string:
                return BY_NAME["int4" if other.is_int else "numeric"]
        return None


def _own_digits(place: Node) -> Node | None:
    """The type of a CAST around a parameter that says how many digits it keeps."""
    kind = place.parent.args.get("to") if isinstance(place.parent, exp.Cast) else None
    return kind.copy() if isinstance(kind, exp.DataType) and kind.expressions else None


def _check_only_queries(tree: Node) -> None:
    """Raises QueryError for what would change something."""
    for node in tree.walk():
        if isinstance(node, _NOT_QUERIES) and not isinstance(node, exp.Query):
            raise QueryError("25006", f"{node.key.upper()} is not supported", _READ_ONLY_HINT)
        if isinstance(node, exp.Select) and node.args.get("into") is not None:
            raise QueryError("25006", "SELECT INTO is not supported", _READ_ONLY_HINT)
        if isinstance(node, exp.Select) and node.args.get("locks"):
            node.set("locks", None)  # rows of one epoch do not change: nothing to lock


def _definition(view: PlainView) -> Node:
    """The view's query. Pipelines take Spark's words as well as PostgreSQL's."""
    try:
        return _parsed(view.text, "postgres")
    except QueryError as error:
        try:
            return _parsed(view.text, "spark")
        except QueryError:
            raise error from None


TABLE_FUNCTIONS: Final = frozenset(
    (
        "generate_series",
        "exploding_generate_series",
        "explodinggenerateseries",
        "range",
        "unnest",
        "explode",
        "json_each",
        "json_array_elements",
        "regexp_split_to_table",
        "posexplode",
        "string_to_table",
    )
)
"""What may stand in FROM besides tables. Most other functions of DuckDB there read files or its own settings."""

REFUSED_FUNCTIONS: Final = frozenset(
    (
        "getenv",
        "getvariable",
        "current_setting",
        "read_text",
        "read_blob",
        "glob",
        "write_log",
        "nextval",
        "currval",
        "setseed",
        "pg_sleep",
        "query",
        "query_table",
        "which_secret",
        "parse_duckdb_log_message",
        "in_search_path",
        "txid_current",
    )
)


def _name_only_column(table: Node) -> None:
    """`generate_series(1, 3) AS i`: the column is called as the alias says."""
    alias = table.args.get("alias")
    if alias is not None and alias.this is not None and not alias.args.get("columns"):
        alias.set("columns", [alias.this.copy()])


def _as_row(table: Node) -> None:
    """`f(x) AS a` of a function with one value: a row with the column `a`. DuckDB has no functions of values that reach further."""
    value = exp.alias_(table.this.copy(), table.alias, quoted=True)
    table.replace(
        exp.Subquery(this=exp.Select(expressions=[value]), alias=exp.TableAlias(this=exp.to_identifier(table.alias)))
    )


def _replace_name(table: exp.Table, name: str, schema: str | None) -> None:
    alias = table.args.get("alias")
    if alias is None or alias.this is None:
        given = exp.to_identifier(table.name, quoted=True)
        if alias is None:
            table.set("alias", exp.TableAlias(this=given))
        else:
            alias.set("this", given)
    table.set("this", exp.to_identifier(name, quoted=True))
    table.set("db", None if schema is None else exp.to_identifier(schema, quoted=True))
    table.set("catalog", None)
    _without_schema(table)


def _without_schema(table: exp.Table) -> None:
    """`schema.table.column` means the table by its name from now on."""
    scope = table.find_ancestor(exp.Select)
    if scope is not None:
        for column in scope.find_all(exp.Column):
            if column.args.get("db") is not None:
                column.set("db", None)
                column.set("catalog", None)


def _is_cte(table: exp.Table) -> bool:
    """Whether the name is one of WITH, where the table stands."""
    name, node = table.name.lower(), table.parent
    inside: list[Node] = [table]
    while node is not None:
        inside.append(node)
        clause = node.args.get("with_")
        if clause is not None:
            for cte in clause.expressions:
                own = any(part is cte for part in inside)
                if own and not clause.args.get("recursive"):
                    break
                if cte.alias.lower() == name:
                    return True
                if own:
                    break
        node = node.parent
    return False


def _field(schema: pa.Schema, name: str) -> pa.Field | None:
    return next((field for field in schema if field.name.lower() == name.lower()), None)


def _conditions(table: exp.Table, shown: pa.Schema) -> list[tuple[str, tuple[Any, ...]]]:
    """What WHERE says its columns are equal to, where it is a conjunction: `column = value`, `column IN (values)`."""
    select = table.parent.parent if table.parent is not None else None
    if not isinstance(select, exp.Select) or not isinstance(table.parent, exp.From | exp.Join):
        return []
    where = select.args.get("where")
    if where is None:
        return []
    alone = not select.args.get("joins")
    label = (table.alias or table.name).lower()
    found = []
    for condition in where.this.flatten() if isinstance(where.this, exp.And) else [where.this]:
        condition = condition.unnest()
        if isinstance(condition, exp.EQ):
            pairs = [(condition.this, [condition.expression]), (condition.expression, [condition.this])]
        elif isinstance(condition, exp.In) and condition.args.get("expressions"):
            pairs = [(condition.this, condition.expressions)]
        else:
            continue
        for column, values in pairs:
            if not isinstance(column, exp.Column) or not (
                column.table.lower() == label or (alone and not column.table)
            ):
                continue
            field = _field(shown, column.name)
            plain = [_value(value) for value in values]
            if field is not None and all(value is not None for value in plain):
                found.append((field.name, tuple(plain)))
    return found


def _value(node: Node) -> Any:
    """A literal's value or a parameter's place; None for everything else."""
    node = node.unnest()
    if (
        isinstance(node, exp.Cast)
        and cast_type(node) is not None
        and isinstance(node.this, exp.Literal | exp.Parameter)
    ):
        kind = cast_type(node)
        if kind is not None and kind.name in ("int2", "int4", "int8", "text", "varchar"):
            return _value(node.this)
        return None
    if isinstance(node, exp.Parameter) and node.name.isdigit():
        return Slot(int(node.name))
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and node.this.is_int:
        return -int(node.this.name)
    if isinstance(node, exp.Literal):
        return node.name if node.is_string else int(node.name) if node.is_int else None
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    return None


def _sql(tree: Node) -> str:
    try:
        return str(tree.sql("duckdb"))
    except SqlglotError as error:
        raise QueryError("0A000", _first_line(error)) from None
