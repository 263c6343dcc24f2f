"""Statements back as SQL. Credentials are left out unless asked for; with them, parsing the text again gives the same value."""

from __future__ import annotations

import re

from magnetar.pipeline.sql.cursor import RESERVED
from magnetar.pipeline.sql.intervals import interval_text
from magnetar.pipeline.sql.options import Options
from magnetar.pipeline.sql.statements import (
    INCLUDED_COLUMNS,
    ROW_KEY,
    AlterOptions,
    Comment,
    CreateFunction,
    CreateIndex,
    CreateSink,
    CreateSource,
    CreateView,
    Describe,
    Drop,
    Explain,
    Flush,
    Format,
    Include,
    Rename,
    Select,
    SetParallelism,
    Show,
    ShowCreate,
    Statement,
)

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN_OPTION = re.compile(r"[A-Za-z_]\w*([.-][A-Za-z_]\w*)*", re.ASCII)


def print_statement(statement: Statement, *, with_credentials: bool = False) -> str:
    """One statement, without the semicolon. `with_credentials` is for the process that runs it, never for people or files."""
    match statement:
        case CreateSource():
            return _source(statement, with_credentials)
        case CreateView():
            emit = "\nEMIT ON WINDOW CLOSE" if statement.emit_on_window_close else ""
            exists = _if_not_exists(statement.if_not_exists)
            if not statement.materialized:
                return f"CREATE VIEW {exists}{quote(statement.name)} AS\n{statement.query.text}"
            options = _view_options(statement)
            return f"CREATE MATERIALIZED VIEW {exists}{quote(statement.name)}{options} AS\n{statement.query.text}{emit}"
        case CreateSink():
            return _sink(statement, with_credentials)
        case CreateFunction():
            return _function(statement)
        case CreateIndex():
            return _index(statement)
        case Comment(kind, name, column, text):
            of = f"{kind} {quote(name)}" if column is None else f"COLUMN {quote(name)}.{quote(column)}"
            return f"COMMENT ON {of} IS {'NULL' if text is None else literal(text)}"
        case SetParallelism(view, parallelism):
            return f"ALTER MATERIALIZED VIEW {quote(view)} SET PARALLELISM = {'ADAPTIVE' if parallelism is None else parallelism}"
        case AlterOptions(kind, name, options):
            return f"ALTER {kind} {quote(name)} SET {print_options(options, with_credentials)}"
        case Rename(kind, name, to):
            return f"ALTER {kind} {quote(name)} RENAME TO {quote(to)}"
        case Show(kind, like, relation):
            words = "INDEXES" if kind == "INDEX" else f"{kind}S"
            of = "" if relation is None else f" FROM {quote(relation)}"
            return f"SHOW {words}{of}" + ("" if like is None else f" LIKE {literal(like)}")
        case ShowCreate(kind, name):
            return f"SHOW CREATE {kind} {quote(name)}"
        case Describe(name):
            return f"DESCRIBE {quote(name)}"
        case Drop(kind, name, if_exists, cascade):
            return f"DROP {kind} {'IF EXISTS ' if if_exists else ''}{quote(name)}{' CASCADE' if cascade else ''}"
        case Flush():
            return "FLUSH"
        case Select(query):
            return query.text
        case Explain(inner):
            return f"EXPLAIN {print_statement(inner, with_credentials=with_credentials)}"


def _function(function: CreateFunction) -> str:
    given = ", ".join(f"{quote(each)} {kind}" for each, kind in function.parameters)
    start = f"CREATE FUNCTION {_if_not_exists(function.if_not_exists)}{quote(function.name)}({given}) RETURNS {function.returns}"
    if function.language == "sql":
        return f"{start} LANGUAGE sql AS {literal(function.body)}"
    options = {"handler": function.handler} if function.handler and function.handler != function.name else {}
    if function.batch:
        options["batch"] = "true"
    said = f"{' STRICT' if function.strict else ''}{f' WITH {print_options(Options(options))}' if options else ''}"
    return f"{start} LANGUAGE python{said} AS {literal(function.body)}"


def _index(index: CreateIndex) -> str:
    columns = ", ".join(f"{quote(name)}{' DESC' if name in index.descending else ''}" for name in index.columns)
    include = f" INCLUDE ({', '.join(map(quote, index.include))})" if index.include else ""
    start = f"CREATE INDEX {_if_not_exists(index.if_not_exists)}{quote(index.name)}"
    return f"{start} ON {quote(index.relation)} ({columns}){include}"


def quote(name: str) -> str:
    """A name as it stands in a statement."""
    if _PLAIN_NAME.fullmatch(name) and name.upper() not in RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string as it stands in a statement."""
    return "'" + text.replace("'", "''") + "'"


def _view_options(view: CreateView) -> str:
    """Those that are not what they are by themselves."""
    said = {
        "late_rows": view.late_rows if view.late_rows != "drop" else "",
        "on.error": view.on_error if view.on_error != "null" else "",
        "vnode.hash": view.vnode_hash if view.vnode_hash != "crc32" else "",
    }
    found = {name: value for name, value in said.items() if value}
    return f" WITH {print_options(Options(found))}" if found else ""


def _if_not_exists(wanted: bool) -> str:
    return "IF NOT EXISTS " if wanted else ""


def _source(source: CreateSource, with_credentials: bool) -> str:
    lines = []
    for column in source.columns:
        generated = "" if column.generated is None else f" AS {column.generated}"
        needed = " NOT NULL" if column.not_null else ""
        lines.append(f"{quote(column.name)}{'' if column.type is None else ' ' + column.type}{needed}{generated}")
    if source.primary_key and source.primary_key != (ROW_KEY,):
        lines.append(f"PRIMARY KEY ({', '.join(map(quote, source.primary_key))})")
    if source.watermark:
        name = quote(source.watermark.column)
        delay = source.watermark.delay_us
        lines.append(f"WATERMARK FOR {name} AS {name}" + (f" - INTERVAL '{interval_text(delay)}'" if delay else ""))
    body = " (\n  " + ",\n  ".join(lines) + "\n)" if lines else ""
    kind = "TABLE" if source.table else "SOURCE"
    if source.is_written:
        options = f"\nWITH {print_options(source.options, with_credentials)}" if source.options else ""
        grows = " APPEND ONLY" if source.only_grows else ""
        return f"CREATE TABLE {_if_not_exists(source.if_not_exists)}{quote(source.name)}{body}{grows}{options}"
    return "\n".join(
        [
            f"CREATE {kind} {_if_not_exists(source.if_not_exists)}{quote(source.name)}{body}",
            *map(_include, source.includes),
            f"WITH {print_options(source.options, with_credentials)}",
            _format(source.format, with_credentials),
        ]
    )


def _include(include: Include) -> str:
    header = "" if include.header is None else f" {literal(include.header)}"
    named = include.name != (include.header or INCLUDED_COLUMNS[include.kind])
    return f"INCLUDE {include.kind}{header}{f' AS {quote(include.name)}' if named else ''}"


def _sink(sink: CreateSink, with_credentials: bool) -> str:
    source = f"FROM {quote(sink.source)}" if isinstance(sink.source, str) else f"AS\n{sink.source.text}"
    lines = [
        f"CREATE SINK {_if_not_exists(sink.if_not_exists)}{quote(sink.name)} {source}",
        f"WITH {print_options(sink.options, with_credentials)}",
    ]
    if sink.format is not None:
        lines.append(_format(sink.format, with_credentials))
    return "\n".join(lines)


def print_options(options: Options, with_credentials: bool = False) -> str:
    """`(connector = 'pulsar', ...)`."""
    shown = options if with_credentials else options.redacted()
    return "(" + ", ".join(f"{_option_name(name)} = {literal(value)}" for name, value in shown.items()) + ")"


def _option_name(name: str) -> str:
    return name if _PLAIN_OPTION.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def _format(format_: Format, with_credentials: bool) -> str:
    options = f" {print_options(format_.options, with_credentials)}" if format_.options else ""
    return f"FORMAT {format_.format} ENCODE {format_.encode}{options}"
