"""CREATE SOURCE, CREATE TABLE, CREATE SINK and CREATE FUNCTION: columns, keys, watermarks, INCLUDE, WITH and FORMAT ... ENCODE."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final, Literal, cast, get_args

from magnetar.pipeline.sql.cursor import Cursor
from magnetar.pipeline.sql.expressions import check_expression
from magnetar.pipeline.sql.intervals import interval_us
from magnetar.pipeline.sql.lexer import Kind, Token
from magnetar.pipeline.sql.options import Options
from magnetar.pipeline.sql.statements import (
    INCLUDED_COLUMNS,
    ROW_KEY,
    ColumnDefinition,
    CreateFunction,
    CreateSource,
    Format,
    Include,
    IncludeKind,
    Query,
    Watermark,
)
from magnetar.pipeline.sql.types import normalise_type, spark_type
from magnetar.pipeline.sql.user_functions import checked

CONNECTORS = ("pulsar", "magnetar")
_TOPICS = ("topic", "topics", "topicsPattern")


def create_source(cursor: Cursor, table: bool) -> CreateSource:
    """Behind CREATE SOURCE or CREATE TABLE."""
    of = "table" if table else "source"
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.name(of)
    body = _Body(cursor)
    includes: list[Include] = []
    if cursor.take_symbol("("):
        body.read()
    while cursor.take("INCLUDE"):
        includes.append(_include(cursor))
    grows = table and cursor.take("APPEND", "ONLY")
    if grows and body.primary_key:
        cursor.fail(
            f"{name}: a row of a table with APPEND ONLY is never replaced, so it has no PRIMARY KEY; leave out one of the two"
        )
    if table and not cursor.looks_at("WITH"):
        return _written_table(cursor, name, body, Options(), if_not_exists, includes, grows)
    cursor.expect(
        "WITH", fix="a source names its topic: WITH (connector = 'pulsar', topic = '...', service.url = '...')"
    )
    options = read_options(cursor)
    if table and "connector" not in options and not cursor.looks_at("FORMAT"):
        return _written_table(cursor, name, body, options, if_not_exists, includes, grows)
    _check_connector(cursor, options)
    while cursor.take("INCLUDE"):
        includes.append(_include(cursor))
    if not cursor.looks_at("FORMAT"):
        cursor.fail(
            "add FORMAT PLAIN ENCODE JSON (or UPSERT, DEBEZIUM; AVRO, PROTOBUF, CSV, BYTES): it says how a message becomes a row"
        )
    format_ = read_format(cursor, ("PLAIN", "UPSERT", "DEBEZIUM"))
    cursor.finish()
    source = CreateSource(
        name,
        options,
        format_,
        tuple(body.columns),
        tuple(body.primary_key),
        body.watermark,
        tuple(includes),
        table,
        if_not_exists,
    )
    _check_source(cursor, source)
    return source


def _written_table(
    cursor: Cursor, name: str, body: _Body, options: Options, if_not_exists: bool, includes: list[Include], grows: bool
) -> CreateSource:
    """A table without a connector: INSERT, UPDATE and DELETE write it, and its topic is made for it. `grows`: APPEND ONLY."""
    cursor.finish()
    if includes:
        cursor.fail(
            f"{name}: INCLUDE is of messages that others send; a table of a topic has WITH (connector = 'pulsar', topic = '...')"
        )
    if not any(column.generated is None for column in body.columns):
        cursor.fail(
            f"{name}: name the columns, as CREATE TABLE {name} (id INT PRIMARY KEY, name VARCHAR); a table of a topic's rows has "
            "WITH (connector = 'pulsar', topic = '...')"
        )
    for option in options:
        if option.lower() in _NOT_OF_WRITTEN:
            cursor.fail(
                f"{name}: a table that is written has no option {option}; topic = '...' names where its changes are kept"
            )
    key = {column.lower() for column in body.primary_key}
    columns = tuple(
        replace(column, not_null=column.name.lower() in key or column.name in body.not_null) for column in body.columns
    )
    source = CreateSource(
        name,
        options,
        Format("PLAIN" if grows else "UPSERT", "JSON"),
        columns,
        () if grows else tuple(body.primary_key) or (ROW_KEY,),
        body.watermark,
        () if grows or body.primary_key else (Include("KEY", ROW_KEY),),
        True,
        if_not_exists,
    )
    generated = next(
        (column.name for column in columns if column.generated is not None and column.name.lower() in key), None
    )
    if generated is not None:
        cursor.fail(f"{name}: {generated} is computed, and the primary key is written; make another column the key")
    _check_source(cursor, source)
    return source


_NOT_OF_WRITTEN: Final = (
    "topics",
    "topicspattern",
    "startingoffsets",
    "startingtime",
    "scan.startup.mode",
    "scan.startup.timestamp.millis",
    "predefinedsubscription",
    "subscriptionprefix",
)


_MARKS: Final = ("IMMUTABLE", "STABLE")
_NULLS: Final = ("STRICT", "CALLED", "RETURNS")


def create_function(cursor: Cursor) -> CreateFunction:
    """Behind CREATE FUNCTION: `f(x INT) RETURNS INT LANGUAGE sql AS $$ SELECT x + 1 $$`, or `LANGUAGE python`."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    at = cursor.token
    name = cursor.name("function")
    cursor.expect_symbol("(", fix=f"write CREATE FUNCTION {name}(x INT) RETURNS INT LANGUAGE sql AS $$ SELECT x + 1 $$")
    parameters: list[tuple[str, str]] = []
    while not cursor.take_symbol(")"):
        parameter = cursor.name("parameter")
        parameters.append((parameter, _type_up_to(cursor, f"parameter {parameter}", ())))
        if not cursor.take_symbol(","):
            cursor.expect_symbol(")", fix="parameters are separated by ','")
            break
    cursor.expect("RETURNS", fix="say the type of its result: RETURNS INT")
    if cursor.looks_at("TABLE") or cursor.looks_at("SETOF"):
        cursor.fail("a function gives one value; a query of several rows is a view")
    returns = _type_up_to(cursor, "the result", ("LANGUAGE", "AS", "RETURN", "VOLATILE", "WITH", *_MARKS, *_NULLS))
    made = _read_body(cursor, CreateFunction(name, tuple(parameters), returns, "", if_not_exists))
    return checked(made, {}, *cursor.where(at))


def _read_body(cursor: Cursor, function: CreateFunction) -> CreateFunction:
    """The clauses behind RETURNS, in any order."""
    language, options = "", Options()
    while not cursor.at_end:
        if cursor.take("LANGUAGE"):
            word = cursor.token
            language = cursor.advance().value.lower()
            if language not in ("sql", "python"):
                cursor.fail(f"LANGUAGE {word.value} does not exist here; write LANGUAGE sql or LANGUAGE python", word)
        elif cursor.take("AS"):
            function = replace(function, body=cursor.string("the function's text"))
        elif cursor.take("RETURN"):
            start = cursor.token
            while not cursor.at_end:
                cursor.skip_group()
            function, language = replace(function, body=cursor.without_comments(start, cursor.token)), "sql"
        elif cursor.token.keyword in _MARKS:
            cursor.advance()
        elif cursor.take("STRICT") or cursor.take("RETURNS", "NULL", "ON", "NULL", "INPUT"):
            function = replace(function, strict=True)
        elif cursor.take("CALLED", "ON", "NULL", "INPUT"):
            function = replace(function, strict=False)
        elif cursor.take("WITH"):
            options = read_options(cursor)
        elif cursor.take("VOLATILE"):
            cursor.fail(
                "a VOLATILE function gives another value each time, so what a view holds could not be computed again"
            )
        elif cursor.looks_at("USING"):
            cursor.fail("a function outside of the process does not exist here; write its text behind AS")
        else:
            cursor.fail(f"expected LANGUAGE sql, LANGUAGE python or AS, found {cursor.token.described()}")
    name = function.name
    if not language or not function.body.strip():
        cursor.fail(
            f"write LANGUAGE sql AS $$ SELECT ... $$, the expression of {name}, or LANGUAGE python AS $$ def {name}(...): ... $$"
        )
    if language == "python":
        return _python(cursor, function, options)
    if function.strict or options:
        cursor.fail(
            "a function of LANGUAGE sql has no options: a NULL argument is NULL within its expression; leave out STRICT and WITH (...)"
        )
    body = function.body.strip().rstrip(";").strip()
    if body[:6].upper() == "SELECT" and not body[6:7].isalnum():
        body = body[6:].strip()
    return function.with_body(body)


_PYTHON_OPTIONS: Final = ("handler", "batch")


def _python(cursor: Cursor, function: CreateFunction, options: Options) -> CreateFunction:
    given = {name.lower(): value for name, value in options.items()}
    if unknown := sorted(set(given) - set(_PYTHON_OPTIONS)):
        cursor.fail(f"a function in Python has no option {unknown[0]}; it takes {' and '.join(_PYTHON_OPTIONS)}")
    batch = given.get("batch", "false").lower()
    if batch not in ("true", "false"):
        cursor.fail(f"batch is {batch!r}; it is 'true' (the function takes and returns Arrow arrays) or 'false'")
    if batch == "true" and function.strict:
        cursor.fail("a function that takes Arrow arrays sees their NULLs; leave out STRICT")
    return replace(function, language="python", handler=given.get("handler", ""), batch=batch == "true")


def _type_up_to(cursor: Cursor, of: str, words: tuple[str, ...]) -> str:
    start, angle = cursor.token, 0
    while not cursor.at_end and not (angle == 0 and (cursor.at_symbol(",", ")") or cursor.token.keyword in words)):
        angle += (cursor.token.value == "<") - (cursor.token.value == ">")
        cursor.skip_group()
    try:
        return normalise_type(cursor.without_comments(start, cursor.token))
    except ValueError as error:
        cursor.fail(f"{of}: {error}", start)


class _Body:
    """What stands within the parentheses: columns, PRIMARY KEY (...), WATERMARK FOR."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.columns: list[ColumnDefinition] = []
        self.primary_key: list[str] = []
        self.not_null: set[str] = set()
        self.watermark: Watermark | None = None

    def read(self) -> None:
        cursor = self.cursor
        while True:
            if cursor.looks_at("PRIMARY", "KEY"):
                cursor.expect("PRIMARY", "KEY")
                self._key(names(cursor, "key column"))
            elif cursor.looks_at("WATERMARK", "FOR"):
                self._watermark()
            elif not cursor.take_symbol("*"):
                self._column()
            if not cursor.take_symbol(","):
                break
        cursor.expect_symbol(")", fix="columns are separated by ','")

    def _key(self, columns: list[str]) -> None:
        if self.primary_key:
            self.cursor.fail("the primary key is given twice; keep one PRIMARY KEY (a, b)")
        self.primary_key = columns

    def _watermark(self) -> None:
        cursor = self.cursor
        if self.watermark:
            cursor.fail("a source has one watermark; remove the second")
        cursor.expect("WATERMARK", "FOR")
        column = cursor.name("time column")
        cursor.expect("AS", fix=f"write WATERMARK FOR {column} AS {column} - INTERVAL '5 seconds'")
        again = cursor.token
        if cursor.name("time column").lower() != column.lower():
            cursor.fail(
                f"the watermark of {column} is computed from {column} alone; write {column} - INTERVAL '5 seconds'",
                again,
            )
        self.watermark = Watermark(column, read_interval(cursor) if cursor.take_symbol("-") else 0)

    def _column(self) -> None:
        cursor = self.cursor
        at = cursor.token
        name = cursor.name("column")
        if any(column.name.lower() == name.lower() for column in self.columns):
            cursor.fail(f"column {name} is defined twice; remove one", at)
        type_ = None if cursor.looks_at("AS") else self._type(name)
        generated = None
        while not cursor.at_end and not cursor.at_symbol(",", ")"):
            if cursor.take("PRIMARY", "KEY"):
                self._key([name])
            elif cursor.take("NOT", "NULL"):
                self.not_null.add(name)
            elif cursor.take("NULL"):
                pass
            elif cursor.take("AS"):
                generated = self._expression()
            else:
                cursor.fail(f"expected ',' or ')' behind column {name}, found {cursor.token.described()}")
        self.columns.append(ColumnDefinition(name, type_, generated))

    def _type(self, name: str) -> str:
        cursor = self.cursor
        start, angle = cursor.token, 0
        while not cursor.at_end:
            token = cursor.token
            if angle == 0 and (cursor.at_symbol(",", ")") or token.keyword in ("PRIMARY", "NOT", "NULL", "AS")):
                break
            if token.kind is Kind.STRING:
                cursor.fail(f"expected the type of column {name}, found a string")
            angle += (token.value == "<") - (token.value == ">")
            cursor.skip_group()
        try:
            return normalise_type(cursor.without_comments(start, cursor.token))
        except ValueError as error:
            cursor.fail(f"column {name}: {error}", start)

    def _expression(self) -> str:
        cursor = self.cursor
        start = cursor.token
        while not cursor.at_end and not cursor.at_symbol(",", ")"):
            cursor.skip_group()
        text = cursor.without_comments(start, cursor.token)
        if not text:
            cursor.fail("expected an expression behind AS")
        check_expression(text, *cursor.where(start))
        return text


def names(cursor: Cursor, of: str) -> list[str]:
    """`(a, b)`."""
    cursor.expect_symbol("(", fix=f"write the {of}s within parentheses")
    found = [cursor.name(of)]
    while cursor.take_symbol(","):
        found.append(cursor.name(of))
    cursor.expect_symbol(")")
    return found


def read_interval(cursor: Cursor) -> int:
    """`INTERVAL '5 seconds'` or `INTERVAL '5' SECOND`, in microseconds."""
    cursor.expect("INTERVAL", fix="write for example INTERVAL '5 seconds'")
    at = cursor.token
    text = cursor.string("the length")
    unit = cursor.advance().value if cursor.token.kind is Kind.WORD else None
    try:
        return interval_us(text, unit)
    except ValueError as error:
        cursor.fail(str(error), at)


def read_options(cursor: Cursor) -> Options:
    """`(connector = 'pulsar', service.url = '...')`. Names may have dots and dashes; values are strings, numbers or true and false."""
    cursor.expect_symbol("(", fix="options stand within parentheses: (name = 'value', ...)")
    values: dict[str, str] = {}
    lowered: set[str] = set()
    while not cursor.take_symbol(")"):
        at = cursor.token
        name = _option_name(cursor)
        cursor.expect_symbol("=", fix=f"write {name} = 'value'")
        if name.lower() in lowered:
            cursor.fail(f"option {name} is given twice; remove one", at)
        lowered.add(name.lower())
        values[name] = _option_value(cursor, name)
        if not cursor.take_symbol(","):
            cursor.expect_symbol(")", fix="options are separated by ','")
            break
    return Options(values)


def _option_name(cursor: Cursor) -> str:
    parts: list[str] = []
    while True:
        token = cursor.token
        if token.kind not in (Kind.WORD, Kind.QUOTED, Kind.NUMBER):
            cursor.fail(f"expected the name of an option, found {token.described()}")
        parts.append(cursor.advance().value)
        if cursor.take_symbol("."):
            parts.append(".")
        elif cursor.take_symbol("-"):
            parts.append("-")
        else:
            name = "".join(parts)
            if not name:
                cursor.fail("an option's name is not empty", token)
            return name


def _option_value(cursor: Cursor, name: str) -> str:
    token = cursor.token
    if token.kind in (Kind.STRING, Kind.NUMBER):
        return cursor.advance().value
    if token.keyword in ("TRUE", "FALSE"):
        return cursor.advance().value.lower()
    if token.keyword == "SECRET":
        cursor.fail(f"SECRET objects are not kept here; write {name} = 'value', it is never shown again")
    cursor.fail(f"the value of {name} stands within single quotes: {name} = '...'")


def read_format(cursor: Cursor, formats: tuple[str, ...]) -> Format:
    """`FORMAT PLAIN ENCODE JSON [(name = 'value')]`."""
    cursor.expect("FORMAT")
    format_ = _one_of(cursor, "FORMAT", formats)
    cursor.expect("ENCODE", fix="write for example FORMAT PLAIN ENCODE JSON")
    encode = _one_of(cursor, "ENCODE", ("JSON", "AVRO", "PROTOBUF", "CSV", "BYTES"))
    options = read_options(cursor) if cursor.at_symbol("(") else Options()
    return Format(
        cast("Literal['PLAIN', 'UPSERT', 'DEBEZIUM']", format_),
        cast("Literal['JSON', 'AVRO', 'PROTOBUF', 'CSV', 'BYTES']", encode),
        options,
    )


def _one_of(cursor: Cursor, word: str, allowed: tuple[str, ...]) -> str:
    if cursor.token.keyword not in allowed:
        cursor.fail(f"{word} takes {', '.join(allowed)}; found {cursor.token.described()}")
    return cursor.advance().keyword


def _include(cursor: Cursor) -> Include:
    at = cursor.token
    kind = at.keyword
    if kind not in get_args(IncludeKind):
        cursor.fail(f"INCLUDE takes {', '.join(get_args(IncludeKind))}; found {at.described()}")
    cursor.advance()
    header = cursor.advance().value if kind == "HEADER" and cursor.token.kind is Kind.STRING else None
    name = cursor.name("column") if cursor.take("AS") else header or INCLUDED_COLUMNS[kind]
    return Include(cast("IncludeKind", kind), name, header)


def _check_connector(cursor: Cursor, options: Options) -> None:
    connector = options.get("connector")
    if connector is None:
        cursor.fail("WITH names no connector; add connector = 'pulsar' (or 'magnetar')")
    if connector not in CONNECTORS:
        cursor.fail("this connector does not exist here; use connector = 'pulsar' or 'magnetar'")
    given = [name for name in _TOPICS if name in options]
    if len(given) != 1:
        cursor.fail(f"WITH names {'no topic' if not given else 'topics twice'}; give one of {', '.join(_TOPICS)}")


def _check_source(cursor: Cursor, source: CreateSource) -> None:
    columns = {column.name.lower() for column in source.columns} | {include.name.lower() for include in source.includes}
    if len(columns) != len(source.columns) + len(source.includes):
        cursor.fail(f"{source.name}: a column has the name of an INCLUDE column; rename it with INCLUDE ... AS name")
    form = source.format.format
    if form != "PLAIN" and not source.primary_key:
        cursor.fail(f"{source.name}: FORMAT {form} replaces rows by key; add PRIMARY KEY (column)")
    if form == "DEBEZIUM" and source.format.encode != "JSON":
        cursor.fail(f"{source.name}: FORMAT DEBEZIUM is read with ENCODE JSON only; send it so")
    if form == "DEBEZIUM" and not source.columns:
        cursor.fail(f"{source.name}: name the columns; the schema of a DEBEZIUM topic is that of its envelope")
    if source.format.encode == "BYTES" and [column.type for column in source.columns] not in ([], ["BYTEA"]):
        cursor.fail(f"{source.name}: ENCODE BYTES has one column of type BYTEA; use ENCODE JSON for several")
    if source.format.encode == "CSV":
        _check_csv(cursor, source)
    if source.format.encode == "PROTOBUF":
        _check_protobuf(cursor, source)
    if source.columns:
        needed = [*source.primary_key, *([source.watermark.column] if source.watermark else [])]
        for name in needed:
            if name.lower() not in columns:
                cursor.fail(f"{source.name}: there is no column {name}; define it or correct the key or watermark")


_PROTOBUF_OPTIONS: Final = ("message", "schema.location", "on.decode.error")


def _check_protobuf(cursor: Cursor, source: CreateSource) -> None:
    given = {name.lower() for name in source.format.options}
    if unknown := sorted(given - set(_PROTOBUF_OPTIONS)):
        cursor.fail(
            f"{source.name}: ENCODE PROTOBUF has no option {unknown[0]}; it takes {', '.join(_PROTOBUF_OPTIONS)}"
        )
    if "schema.location" in given and "message" not in given:
        cursor.fail(f"{source.name}: a descriptor file has several messages; add message = 'package.Name'")


_CSV_OPTIONS: Final = ("delimiter", "without_header", "on.decode.error")


def _check_csv(cursor: Cursor, source: CreateSource) -> None:
    if not any(column.generated is None for column in source.columns):
        cursor.fail(f"{source.name}: name the columns in the order of the fields; CSV has no schema")
    for column in source.columns:
        if spark_type(column.type or "VARCHAR").startswith(("ARRAY", "STRUCT", "MAP")):
            cursor.fail(f"{source.name}: a field of CSV is one value; make {column.name} a JSONB, which keeps its text")
    given = {name.lower(): value for name, value in source.format.options.items()}
    if unknown := sorted(set(given) - set(_CSV_OPTIONS)):
        cursor.fail(f"{source.name}: ENCODE CSV has no option {unknown[0]}; it takes {', '.join(_CSV_OPTIONS)}")
    if given.get("without_header", "true").lower() != "true":
        cursor.fail(f"{source.name}: a message is one row and has no header; write without_header = 'true'")
    delimiter = given.get("delimiter", ",")
    if delimiter != "\\t" and (len(delimiter) != 1 or delimiter in '"\r\n'):
        cursor.fail(f"{source.name}: the delimiter is one character, such as ',' or ';', or '\\t' for a tab")


def read_query(cursor: Cursor) -> tuple[Query, bool]:
    """A SELECT up to the clauses of the statement around it; and whether EMIT ON WINDOW CLOSE stood behind it."""
    start = cursor.token
    if start.keyword not in ("SELECT", "WITH", "VALUES") and not cursor.at_symbol("("):
        cursor.fail(f"expected SELECT, found {start.described()}")
    depth, last = 0, start
    rest = [*cursor.rest(), cursor.end]
    for token, after in pairwise(rest):
        if token is not start and depth == 0 and _ends_query(token, after):
            break
        if token.kind is Kind.SYMBOL:
            depth += (token.value in "([{") - (token.value in ")]}")
        last = token
    query = Query(cursor.text[start.start : last.end], *cursor.where(start))
    cursor.pass_over(last)
    emit = cursor.take("EMIT", "ON", "WINDOW", "CLOSE")
    if not emit and cursor.looks_at("EMIT"):
        cursor.fail("write EMIT ON WINDOW CLOSE, or leave EMIT out: changes are then sent with every epoch")
    return query, emit


def _ends_query(token: Token, after: Token) -> bool:
    """EMIT ..., WITH (...) and FORMAT ... ENCODE belong to the statement around a query; `WITH TIME ZONE` and `format()` do not."""
    if token.keyword == "WITH":
        return after.value == "(" and after.kind is Kind.SYMBOL
    if token.keyword == "FORMAT":
        return after.keyword in ("PLAIN", "UPSERT", "DEBEZIUM")
    return token.keyword == "EMIT"
