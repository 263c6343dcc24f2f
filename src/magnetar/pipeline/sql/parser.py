"""From a text of statements to values: `parse(text)`. Queries stay text here; `magnetar.pipeline.sql.plan` reads them.

The statements are read by hand, the queries by sqlglot. sqlglot's own dialect for RisingWave was tried for the
statements too (version 30): it keeps EMIT ON WINDOW CLOSE, SET PARALLELISM, SHOW and EXPLAIN as uninterpreted text,
cannot read INCLUDE TIMESTAMP without AS, and accepts four of five invalid statements of the tests, for which a
pipeline has an error with line, column and what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, cast, get_args

from magnetar.hashing.vnode import VnodeHash
from magnetar.pipeline.errors import SqlError
from magnetar.pipeline.sql.create import create_function, create_source, names, read_format, read_options, read_query
from magnetar.pipeline.sql.cursor import Cursor
from magnetar.pipeline.sql.lexer import Position, Token, statements_of
from magnetar.pipeline.sql.options import Options
from magnetar.pipeline.sql.printer import quote
from magnetar.pipeline.sql.statements import (
    AlterOptions,
    Comment,
    CreateIndex,
    CreateSink,
    CreateSource,
    CreateView,
    Describe,
    Drop,
    ErrorPolicy,
    Explain,
    Flush,
    LatePolicy,
    ObjectKind,
    Query,
    Rename,
    Select,
    SetParallelism,
    Show,
    ShowCreate,
    Statement,
)

MAX_STATEMENTS = 1_000
"""A text with more statements is refused."""
MAX_PARALLELISM = 32_768
"""The largest number of vnodes a table may have, so the largest parallelism."""

_INSTEAD = {
    "INSERT": "write it in psql (magnetar pipeline serve), into a CREATE TABLE t (...) without a connector",
    "UPDATE": "write it in psql (magnetar pipeline serve), of a CREATE TABLE t (...) without a connector",
    "DELETE": "write it in psql (magnetar pipeline serve), from a CREATE TABLE t (...) without a connector",
    "SET": "settings belong to `magnetar pipeline run`; for parallelism write ALTER MATERIALIZED VIEW v SET PARALLELISM = n",
    "BEGIN": "every epoch is one transaction over all views; leave BEGIN and COMMIT out",
    "COMMIT": "every epoch is one transaction over all views; leave BEGIN and COMMIT out",
    "GRANT": "who may read a topic is decided by the broker's permissions",
    "REVOKE": "who may read a topic is decided by the broker's permissions",
    "ROLLBACK": "every epoch is one transaction over all views; leave ROLLBACK out",
    "TRUNCATE": "publish an empty message for each key, or let the topic's retention take its messages",
    "COPY": "publish the rows to a topic, and read it with CREATE SOURCE ... FORMAT PLAIN ENCODE CSV",
    "REFRESH": "views are up to date with every epoch; leave REFRESH out",
    "WAIT": "write FLUSH, which waits for the next epoch",
    "RECOVER": "run the file again: a pipeline goes on behind its last epoch",
    "CANCEL": "write magnetar pipeline stop; a view goes with DROP MATERIALIZED VIEW",
    "DECLARE": "follow a view's changes with magnetar pipeline subscribe",
    "ANALYZE": "a pipeline keeps no statistics about its tables; remove the statement",
    "USE": "there is one catalog for each pipeline; leave USE out",
}
_CREATE_INSTEAD = {
    "SUBSCRIPTION": "send the changes to a topic with CREATE SINK and subscribe to the topic",
    "AGGREGATE": "compute it with the aggregates there are, or in a consumer",
    "USER": "who may read a topic is decided by the broker's permissions",
    "ROLE": "who may read a topic is decided by the broker's permissions",
    "TYPE": "write STRUCT<a INT, b VARCHAR> as the type of the column",
    "SEQUENCE": "INCLUDE OFFSET gives each message a number",
    "SCHEMA": "names have no schema here",
    "DATABASE": "there is one catalog for each pipeline",
    "SECRET": "write the value in WITH (...); it is never shown again",
    "CONNECTION": "write the connection in the WITH (...) of each source and sink",
}


def parse(text: str) -> tuple[Statement, ...]:
    """All statements of `text`. SqlError names line, column and the fix of the first that cannot be read."""
    position = Position(text)
    statements: list[Statement] = []
    for tokens in statements_of(text):
        cursor = Cursor(text, tokens, position)
        if len(statements) == MAX_STATEMENTS:
            cursor.fail(f"more than {MAX_STATEMENTS} statements; split the file")
        statements.append(_statement(cursor))
    return tuple(statements)


def parse_one(text: str) -> Statement:
    """The one statement of `text`."""
    statements = parse(text)
    if len(statements) != 1:
        raise SqlError(f"expected one statement, found {len(statements)}; run a file for several")
    return statements[0]


def _statement(cursor: Cursor) -> Statement:
    word = cursor.token.keyword
    if word in ("SELECT", "WITH", "VALUES") or cursor.at_symbol("("):
        query, emit = read_query(cursor)
        if emit:
            cursor.fail(
                "EMIT ON WINDOW CLOSE belongs to CREATE MATERIALIZED VIEW ... AS SELECT; leave it out of a query"
            )
        cursor.finish()
        return Select(query)
    reader = _READERS.get(word)
    if reader is None:
        instead = _INSTEAD.get(word)
        if instead:
            cursor.fail(f"{word} is not a statement of a pipeline; {instead}")
        cursor.fail(
            f"a statement cannot begin with {cursor.token.described()}; use CREATE, ALTER, DROP, SHOW, DESCRIBE, EXPLAIN, FLUSH or SELECT"
        )
    cursor.advance()
    statement = reader(cursor)
    cursor.finish()
    return statement


def _create(cursor: Cursor) -> Statement:
    if cursor.looks_at("OR", "REPLACE"):
        cursor.fail(
            "leave out OR REPLACE: change the CREATE statement in the file, and `run` shows what it keeps and what is built again"
        )
    if cursor.take("SOURCE"):
        return create_source(cursor, table=False)
    if cursor.take("TABLE"):
        return create_source(cursor, table=True)
    if cursor.take("MATERIALIZED", "VIEW"):
        return _create_view(cursor)
    if cursor.take("VIEW"):
        return _create_plain_view(cursor)
    if cursor.take("SINK"):
        return _create_sink(cursor)
    if cursor.take("FUNCTION"):
        return create_function(cursor)
    if cursor.take("INDEX"):
        return _create_index(cursor)
    what = cursor.token.keyword
    if what in _CREATE_INSTEAD:
        cursor.fail(f"CREATE {what} does not exist here; {_CREATE_INSTEAD[what]}")
    cursor.fail(
        f"CREATE takes SOURCE, TABLE, VIEW, MATERIALIZED VIEW, INDEX, SINK or FUNCTION; found {cursor.token.described()}"
    )


def _create_view(cursor: Cursor) -> CreateView:
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.name("view")
    columns = names(cursor, "column") if cursor.at_symbol("(") else []
    at = cursor.token
    options = read_options(cursor) if cursor.take("WITH") else Options()
    said = _view_options(cursor, name, options, at)
    cursor.expect("AS", fix=f"write CREATE MATERIALIZED VIEW {name} AS SELECT ...")
    query, emit = read_query(cursor)
    return CreateView(
        name,
        _with_names(query, name, columns),
        emit,
        if_not_exists,
        said.late_rows or "drop",
        on_error=said.on_error or "null",
        vnode_hash=said.vnode_hash or "crc32",
    )


def _create_plain_view(cursor: Cursor) -> CreateView:
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.name("view")
    columns = names(cursor, "column") if cursor.at_symbol("(") else []
    cursor.expect("AS", fix=f"write CREATE VIEW {name} AS SELECT ...")
    query, emit = read_query(cursor)
    if emit:
        cursor.fail("EMIT ON WINDOW CLOSE belongs to CREATE MATERIALIZED VIEW: a view keeps no rows")
    query = _with_names(query, name, columns)
    return CreateView(name, query, if_not_exists=if_not_exists, materialized=False)


def _with_names(query: Query, view: str, columns: list[str]) -> Query:
    """`CREATE VIEW v (a, b) AS SELECT ...`: the query with these names of its columns. What is wrong within keeps its place."""
    if not columns:
        return query
    before = "SELECT * FROM ("
    text = f"{before}{query.text}) AS {quote(view)} ({', '.join(map(quote, columns))})"
    return replace(query, text=text, column=query.column - len(before))


def _create_index(cursor: Cursor) -> CreateIndex:
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = "" if cursor.looks_at("ON") else cursor.name("index")
    cursor.expect("ON", fix=f"write CREATE INDEX {name or 'i'} ON view (column)")
    relation = cursor.name("table or view")
    cursor.expect_symbol("(", fix=f"write CREATE INDEX {name or 'i'} ON {relation} (column)")
    columns: list[str] = []
    descending: list[str] = []
    while True:
        at = cursor.token
        column = cursor.name("column")
        if not cursor.at_symbol(",", ")") and cursor.token.keyword not in ("ASC", "DESC", "NULLS"):
            cursor.fail(
                "an index is of columns; create a materialized view that has the expression as a column, and an index of that",
                at,
            )
        columns.append(column)
        if cursor.take("DESC"):
            descending.append(column)
        else:
            cursor.take("ASC")
        if cursor.take("NULLS") and not cursor.take("FIRST"):
            cursor.expect("LAST", fix="write NULLS FIRST or NULLS LAST")
        if not cursor.take_symbol(","):
            break
    cursor.expect_symbol(")", fix="columns are separated by ','")
    include = tuple(names(cursor, "column")) if cursor.take("INCLUDE") else ()
    if cursor.take("DISTRIBUTED", "BY"):
        names(cursor, "column")  # rows lie where those of the view lie
    name = name or "_".join([relation, *columns, "idx"])
    return CreateIndex(name, relation, tuple(columns), tuple(descending), include, if_not_exists)


@dataclass(frozen=True, slots=True)
class _ViewOptions:
    """What WITH says of a view, None where it says nothing."""

    late_rows: LatePolicy | None = None
    on_error: ErrorPolicy | None = None
    vnode_hash: VnodeHash | None = None


def _view_options(cursor: Cursor, view: str, options: Options, at: Token) -> _ViewOptions:
    said = {name.lower(): value.lower() for name, value in options.items()}
    for option, value in options.items():
        known = _VIEW_OPTIONS.get(option.lower())
        if known is None:
            takes = "late_rows = 'drop' or 'fail', on.error = 'null', 'dead_letter' or 'strict', and vnode.hash = 'crc32' or 'segment'"
            cursor.fail(f"a view has no option {option}; it takes {takes}", at)
        values, means = known
        if value.lower() not in values:
            cursor.fail(f"{option.lower()} is {value!r}; it is {means.format(view=view)}", at)
    return _ViewOptions(
        cast("LatePolicy | None", said.get("late_rows")),
        cast("ErrorPolicy | None", said.get("on.error")),
        cast("VnodeHash | None", said.get("vnode.hash")),
    )


_VIEW_OPTIONS: Final = {
    "late_rows": (
        get_args(LatePolicy),
        "'drop' (left out and counted) or 'fail'. To keep late rows or send them to a topic, create a view or a sink AS SELECT * FROM "
        "LATE_ROWS({view})",
    ),
    "on.error": (
        get_args(ErrorPolicy),
        "'null' (an expression that fails is NULL and counted), 'dead_letter' (its row is left out and the message sent to a topic) or "
        "'strict' (the epoch fails)",
    ),
    "vnode.hash": (
        get_args(VnodeHash),
        "'crc32' (RisingWave's) or 'segment' (the hash by which a scalable topic sends a key to a segment)",
    ),
}
"""Of a view: the values of each option, and what they mean."""


def _create_sink(cursor: Cursor) -> CreateSink:
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.name("sink")
    if cursor.looks_at("INTO"):
        cursor.fail("a sink writes to a topic, not into a table; use FROM v WITH (connector = 'pulsar', topic = '...')")
    source: str | Query
    if cursor.take("FROM"):
        source = cursor.name("view")
    else:
        cursor.expect(
            "AS", fix=f"write CREATE SINK {name} FROM v WITH (...) or CREATE SINK {name} AS SELECT ... WITH (...)"
        )
        source, emit = read_query(cursor)
        if emit:
            cursor.fail(
                "EMIT ON WINDOW CLOSE belongs to a materialized view; create one and write CREATE SINK ... FROM it"
            )
    cursor.expect("WITH", fix="a sink says where to: WITH (connector = 'pulsar', topic = '...')")
    options = read_options(cursor)
    if "connector" not in options:
        cursor.fail(
            f"{name}: WITH names no connector; add connector = 'pulsar' (or another Spark data source, as 'parquet')"
        )
    format_ = read_format(cursor, ("PLAIN", "UPSERT", "DEBEZIUM")) if cursor.looks_at("FORMAT") else None
    return CreateSink(name, source, options, format_, if_not_exists)


def _alter(cursor: Cursor) -> SetParallelism | AlterOptions | Rename:
    kind = _kind(cursor, "ALTER")
    view = cursor.name(kind.lower())
    if cursor.take("RENAME"):
        cursor.expect("TO", fix=f"write ALTER {kind} {view} RENAME TO new_name")
        return Rename(kind, view, cursor.name(kind.lower()))
    if kind == "VIEW":
        cursor.fail(
            "a view has no options; change its CREATE VIEW in the file. For what keeps rows write ALTER MATERIALIZED VIEW"
        )
    if cursor.looks_at("SET") and cursor.peek(1).value == "(":
        cursor.expect("SET")
        at = cursor.token
        options = read_options(cursor)
        if not options:
            cursor.fail(f"nothing is set; write ALTER {kind} {view} SET (name = 'value')", at)
        is_view = kind == "MATERIALIZED VIEW"
        said = _view_options(cursor, view, options, at) if is_view else _ViewOptions()
        if said.vnode_hash is not None:
            cursor.fail(
                f"vnode.hash says where the stored rows of {view} lie; change it in its CREATE in the file, which builds the view again",
                at,
            )
        return AlterOptions(kind, view, options, said.late_rows, said.on_error)
    if cursor.looks_at("ADD") or (cursor.looks_at("DROP") and kind in ("SOURCE", "TABLE")):
        cursor.fail(
            f"edit the columns of its CREATE {kind} in the file and run it again; `run` shows which state can be kept"
        )
    if kind != "MATERIALIZED VIEW":
        cursor.fail(
            f"write ALTER {kind} {view} SET (name = 'value'); for anything else change its CREATE {kind} in the file"
        )
    fix = f"write ALTER MATERIALIZED VIEW {view} SET PARALLELISM = 4 (or ADAPTIVE)"
    cursor.expect("SET", "PARALLELISM", fix=fix)
    if not cursor.take_symbol("="):
        cursor.expect("TO", fix=fix)
    if cursor.take("ADAPTIVE"):
        return SetParallelism(view, None)
    at = cursor.token
    parallelism = cursor.integer("the parallelism")
    if not 1 <= parallelism <= MAX_PARALLELISM:
        cursor.fail(f"the parallelism is 1 to {MAX_PARALLELISM}", at)
    return SetParallelism(view, parallelism)


_PLURALS: dict[str, ObjectKind] = {
    "SOURCES": "SOURCE",
    "TABLES": "TABLE",
    "VIEWS": "VIEW",
    "SINKS": "SINK",
    "FUNCTIONS": "FUNCTION",
    "INDEXES": "INDEX",
}


def _show(cursor: Cursor) -> Show | ShowCreate:
    if cursor.take("CREATE"):
        return ShowCreate(_kind(cursor, "SHOW CREATE"), cursor.name("object"))
    kind: ObjectKind | None = "MATERIALIZED VIEW" if cursor.take("MATERIALIZED", "VIEWS") else None
    if kind is None:
        kind = _PLURALS.get(cursor.token.keyword)
        if kind is None:
            cursor.fail(
                "SHOW takes SOURCES, TABLES, VIEWS, MATERIALIZED VIEWS, SINKS, FUNCTIONS, INDEXES or CREATE ...; "
                f"found {cursor.token.described()}"
            )
        cursor.advance()
    relation = cursor.name("table or view") if kind == "INDEX" and (cursor.take("FROM") or cursor.take("ON")) else None
    like = cursor.string("a pattern") if cursor.take("LIKE") else None
    return Show(kind, like, relation)


def _kind(cursor: Cursor, of: str) -> ObjectKind:
    if cursor.take("MATERIALIZED", "VIEW"):
        return "MATERIALIZED VIEW"
    word = cursor.token.keyword
    if word == "FUNCTION" and of == "ALTER":
        cursor.fail("a function has no options; change its CREATE FUNCTION in the file")
    if word == "INDEX" and of == "ALTER":
        cursor.fail("an index has no options; DROP INDEX and CREATE INDEX make it anew, which moves no rows")
    if word not in ("SOURCE", "TABLE", "VIEW", "SINK", "FUNCTION", "INDEX"):
        functions = "" if of == "ALTER" else ", FUNCTION, INDEX"
        cursor.fail(
            f"{of} takes SOURCE, TABLE, VIEW{functions}, MATERIALIZED VIEW or SINK; found {cursor.token.described()}"
        )
    cursor.advance()
    return cast("ObjectKind", word)


def _describe(cursor: Cursor) -> Describe:
    return Describe(cursor.name("source, view or sink"))


def _comment(cursor: Cursor) -> Comment:
    usage = "write COMMENT ON TABLE t IS 'text', or COMMENT ON COLUMN t.c IS 'text'"
    cursor.expect("ON", fix=usage)
    column = None
    if cursor.take("COLUMN"):
        kind: ObjectKind = "TABLE"
        name = cursor.owner("table or view")
        column = cursor.name("column")
    else:
        kind = _kind(cursor, "COMMENT ON")
        name = cursor.name(kind.lower())
        if kind in ("FUNCTION", "INDEX"):
            cursor.fail(f"a comment is of what has columns, which a {kind} has not; {usage}")
    cursor.expect("IS", fix=usage)
    return Comment(kind, name, column, None if cursor.take("NULL") else cursor.string("the comment"))


def _drop(cursor: Cursor) -> Drop:
    kind = _kind(cursor, "DROP")
    if_exists = cursor.take("IF", "EXISTS")
    name = cursor.name(kind.lower())
    if kind == "FUNCTION" and cursor.at_symbol("("):
        cursor.skip_group()  # there is one function of a name
    cascade = cursor.take("CASCADE")
    if not cascade:
        cursor.take("RESTRICT")
    return Drop(kind, name, if_exists, cascade)


def _explain(cursor: Cursor) -> Explain:
    at = cursor.token
    if at.keyword == "EXPLAIN":
        cursor.fail("EXPLAIN stands once")
    statement = _statement(cursor)
    if not isinstance(statement, CreateSource | CreateView | CreateSink | Select):
        cursor.fail("EXPLAIN takes a SELECT or a CREATE statement", at)
    return Explain(statement)


def _flush(cursor: Cursor) -> Flush:
    return Flush()


_READERS: dict[str, Callable[[Cursor], Statement]] = {
    "CREATE": _create,
    "COMMENT": _comment,
    "ALTER": _alter,
    "SHOW": _show,
    "DESCRIBE": _describe,
    "DESC": _describe,
    "DROP": _drop,
    "EXPLAIN": _explain,
    "FLUSH": _flush,
}
