"""Printing a statement and reading it again gives the same value; any text gives statements or an SqlError."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.pipeline.errors import SqlError
from magnetar.pipeline.sql.options import Options
from magnetar.pipeline.sql.parser import parse, parse_one
from magnetar.pipeline.sql.printer import print_statement
from magnetar.pipeline.sql.statements import (
    INCLUDED_COLUMNS,
    OBJECT_KINDS,
    AlterOptions,
    ColumnDefinition,
    CreateSink,
    CreateSource,
    CreateView,
    Describe,
    Drop,
    Explain,
    Flush,
    Format,
    Include,
    Query,
    Rename,
    Select,
    SetParallelism,
    Show,
    ShowCreate,
    Watermark,
)

NAMES = st.one_of(
    st.sampled_from(["a", "Order", "select", "with", 'we"ird', "with space", "ä", "x.y", "1st"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
OPTION_NAMES = st.one_of(st.sampled_from(["service.url", "auth.token", "a-b", "topics-x.y"]), NAMES)
OPTIONS = (
    st.dictionaries(OPTION_NAMES, TEXTS, max_size=4)
    .filter(lambda d: len({n.lower() for n in d}) == len(d))
    .map(Options)
)
QUERIES = st.sampled_from(
    [
        "SELECT 1",
        "SELECT 'EMIT' AS a FROM b -- c\n WHERE d",
        "WITH x AS (SELECT 1) SELECT * FROM x",
        "(SELECT a, format(b) FROM c)",
    ]
).map(Query)
TYPES = st.sampled_from(
    [None, "INT", "VARCHAR", "DECIMAL(10, 2)", "STRUCT<a INT, b VARCHAR[]>", "TIMESTAMPTZ", "MAP(VARCHAR, INT)"]
)
SINK_FORMATS = st.builds(
    Format, st.sampled_from(["PLAIN", "UPSERT", "DEBEZIUM"]), st.sampled_from(["JSON", "AVRO", "CSV", "BYTES"]), OPTIONS
)


@st.composite
def sources(draw: st.DrawFn) -> CreateSource:
    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique_by=str.lower))
    split = draw(st.integers(1, len(names)))
    columns = []
    for name in names[:split]:
        type_ = draw(TYPES)
        generated = (
            draw(st.sampled_from(["a + 1", "f ( x , ',' )"]))
            if type_ is None
            else draw(st.sampled_from([None, "x || ','"]))
        )
        columns.append(ColumnDefinition(name, type_, generated))
    includes = []
    for name in names[split:]:
        kind = draw(st.sampled_from(sorted(INCLUDED_COLUMNS)))
        includes.append(Include(kind, name, draw(st.none() | TEXTS.filter(bool)) if kind == "HEADER" else None))  # type: ignore[arg-type]
    options = {**draw(OPTIONS), "connector": draw(st.sampled_from(["pulsar", "magnetar"])), "topic": draw(TEXTS)}
    options = {
        n: v
        for n, v in options.items()
        if n in ("connector", "topic") or n.lower() not in ("connector", "topic", "topics")
    }
    return CreateSource(
        name=draw(NAMES),
        options=Options(options),
        format=Format(
            draw(st.sampled_from(["PLAIN", "UPSERT"])), draw(st.sampled_from(["JSON", "AVRO"])), draw(OPTIONS)
        ),
        columns=tuple(columns),
        primary_key=tuple(draw(st.lists(st.sampled_from(names[:split]), min_size=1, max_size=2))),
        watermark=draw(st.none() | st.builds(Watermark, st.sampled_from(names[:split]), st.integers(0, 10**14))),
        includes=tuple(includes),
        table=draw(st.booleans()),
        if_not_exists=draw(st.booleans()),
    )


VIEWS = st.builds(CreateView, NAMES, QUERIES, st.booleans(), st.booleans()) | st.builds(
    CreateView, NAMES, QUERIES, if_not_exists=st.booleans(), materialized=st.just(False)
)
SINKS = st.builds(
    CreateSink,
    NAMES,
    st.one_of(NAMES, QUERIES),
    OPTIONS.map(lambda o: Options({**{n: v for n, v in o.items() if n.lower() != "connector"}, "connector": "pulsar"})),
    st.none() | SINK_FORMATS,
    st.booleans(),
)
KINDS = st.sampled_from(OBJECT_KINDS)
CREATES = st.one_of(sources(), VIEWS, SINKS)
STATEMENTS = st.one_of(
    CREATES,
    st.builds(Rename, st.sampled_from(["SOURCE", "TABLE", "VIEW", "MATERIALIZED VIEW", "SINK"]), NAMES, NAMES),
    st.builds(SetParallelism, NAMES, st.none() | st.integers(1, 32768)),
    st.builds(
        AlterOptions,
        KINDS.filter(lambda kind: "VIEW" not in kind),
        NAMES,
        OPTIONS.filter(lambda given: len(given) > 0),
    ),
    st.builds(Show, KINDS, st.none() | TEXTS),
    st.builds(ShowCreate, KINDS, NAMES),
    st.builds(Describe, NAMES),
    st.builds(Drop, KINDS, NAMES, st.booleans(), st.booleans()),
    st.just(Flush()),
    QUERIES.map(Select),
    st.builds(Explain, CREATES),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STATEMENTS, min_size=1, max_size=3))
def test_print_and_parse_are_inverse(statements: list[object]) -> None:
    text = ";\n".join(print_statement(statement, with_credentials=True) for statement in statements)  # type: ignore[arg-type]
    assert list(parse(text)) == statements


@settings(max_examples=60, deadline=None)
@given(STATEMENTS)
def test_the_redacted_text_still_parses(statement: object) -> None:
    parse_one(print_statement(statement))  # type: ignore[arg-type]


WORDS = """
    CREATE SOURCE TABLE MATERIALIZED VIEW SINK AS SELECT FROM WITH ( ) , = ; 'a' 'unended " -- /* */ $$ . :: <> INCLUDE KEY FORMAT
    PLAIN ENCODE JSON PRIMARY WATERMARK FOR INTERVAL ALTER SET PARALLELISM 5 x connector topic 'pulsar' EMIT ON WINDOW CLOSE
"""


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS.split()), max_size=30).map(" ".join)))
def test_any_text_gives_statements_or_an_error(text: str) -> None:
    with contextlib.suppress(SqlError):
        for statement in parse(text):
            assert parse_one(print_statement(statement, with_credentials=True)) == statement
