"""The statements of a pipeline as values. Equal values mean the same; where a statement stood in its file is not compared."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from magnetar.hashing.vnode import VnodeHash
from magnetar.pipeline.sql.options import Options

ObjectKind: TypeAlias = Literal["SOURCE", "TABLE", "VIEW", "MATERIALIZED VIEW", "SINK", "FUNCTION", "INDEX"]
IncludeKind: TypeAlias = Literal["KEY", "TIMESTAMP", "EVENT_TIME", "PARTITION", "OFFSET", "HEADER", "TOPIC", "PAYLOAD"]
LatePolicy: TypeAlias = Literal["drop", "fail"]
"""What becomes of rows that come for a closed window: left out and counted, or the end of the epoch they came in."""
ErrorPolicy: TypeAlias = Literal["null", "dead_letter", "strict"]
"""What becomes of an expression that fails for a row: NULL and counted, the row left out and its message sent to a dead-letter topic, or
the end of the epoch."""
OBJECT_KINDS: tuple[ObjectKind, ...] = ("SOURCE", "TABLE", "VIEW", "MATERIALIZED VIEW", "SINK")

INCLUDED_COLUMNS: dict[str, str] = {
    "KEY": "__key",
    "TIMESTAMP": "__publishTime",
    "EVENT_TIME": "__eventTime",
    "PARTITION": "__partition",
    "OFFSET": "__messageId",
    "HEADER": "__messageProperties",
    "TOPIC": "__topic",
    "PAYLOAD": "value",
}
"""Which column of the connector an INCLUDE clause reads."""

ROW_KEY = "_key_row"
"""The key of a table that is written and has none: the text that its rows' messages have as their key. Nobody sees the column."""


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT as it was written. `line` and `column` are where it begins in its file."""

    text: str
    line: int = field(default=1, compare=False, repr=False)
    column: int = field(default=1, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """`type` in RisingWave's spelling, normalised; `generated` is the expression of `AS (...)`, or None. `not_null`: INSERT and UPDATE
    give it a value; what is stored is the same without it."""

    name: str
    type: str | None
    generated: str | None = None
    not_null: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Watermark:
    """Rows of `column` older than the newest one seen less `delay_us` microseconds are late."""

    column: str
    delay_us: int


@dataclass(frozen=True, slots=True)
class Include:
    """`INCLUDE KEY AS name`. `header` is the one message property wanted, None for all."""

    kind: IncludeKind
    name: str
    header: str | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """`FORMAT PLAIN ENCODE JSON (...)`."""

    format: Literal["PLAIN", "UPSERT", "DEBEZIUM"]
    encode: Literal["JSON", "AVRO", "PROTOBUF", "CSV", "BYTES"]
    options: Options = field(default_factory=Options)


@dataclass(frozen=True, slots=True)
class CreateSource:
    """CREATE SOURCE, or CREATE TABLE (`table`). No columns: those of the topic's registered schema."""

    name: str
    options: Options
    format: Format
    columns: tuple[ColumnDefinition, ...] = ()
    primary_key: tuple[str, ...] = ()
    watermark: Watermark | None = None
    includes: tuple[Include, ...] = ()
    table: bool = False
    if_not_exists: bool = False
    sends_failed: bool = field(default=False, compare=False)
    """Whether a view sends messages of it to a dead-letter topic, which is said by the program and not by the statement."""

    @property
    def is_written(self) -> bool:
        """Whether it is a table without a connector, which INSERT, UPDATE and DELETE write: its rows lie in a topic of its own, as
        FORMAT UPSERT ENCODE JSON; without a PRIMARY KEY under a key that each row is given (ROW_KEY)."""
        return self.table and "connector" not in self.options

    @property
    def only_grows(self) -> bool:
        """Whether it is such a table WITH APPEND ONLY, which INSERT alone writes: its rows lie in the topic as FORMAT PLAIN ENCODE JSON."""
        return self.is_written and not self.primary_key


@dataclass(frozen=True, slots=True)
class CreateView:
    """CREATE MATERIALIZED VIEW; not `materialized`: CREATE VIEW, a name for a query, which is planned anew wherever it is read."""

    name: str
    query: Query
    emit_on_window_close: bool = False
    if_not_exists: bool = False
    late_rows: LatePolicy = "drop"
    materialized: bool = True
    on_error: ErrorPolicy = "null"
    vnode_hash: VnodeHash = "crc32"


@dataclass(frozen=True, slots=True)
class CreateSink:
    """CREATE SINK: `source` is the name after FROM, or the query after AS."""

    name: str
    source: str | Query
    options: Options
    format: Format | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateFunction:
    """CREATE FUNCTION. `body`: of LANGUAGE sql an expression of the parameters (name, type), of LANGUAGE python a text that defines the
    function `handler`. `strict`: NULL without a call where an argument is NULL. `batch`: it is called with Arrow arrays."""

    name: str
    parameters: tuple[tuple[str, str], ...]
    returns: str
    body: str
    if_not_exists: bool = False
    language: Literal["sql", "python"] = "sql"
    handler: str = ""
    strict: bool = False
    batch: bool = False

    def with_body(self, body: str) -> CreateFunction:
        return replace(self, body=body)

    def with_code(self, body: str, handler: str) -> CreateFunction:
        return replace(self, body=body, handler=handler)


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """CREATE INDEX: by which columns (`descending` those of them) the server of views looks rows up. `include` is kept as it
    was said: the whole row is there."""

    name: str
    relation: str
    columns: tuple[str, ...]
    descending: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    if_not_exists: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Comment:
    """COMMENT ON TABLE|VIEW|... name IS 'text', or of one of its columns; `text` None: it goes. TABLE says any relation."""

    kind: ObjectKind
    name: str
    column: str | None
    text: str | None


@dataclass(frozen=True, slots=True)
class SetParallelism:
    """ALTER MATERIALIZED VIEW ... SET PARALLELISM; None is ADAPTIVE."""

    view: str
    parallelism: int | None


@dataclass(frozen=True, slots=True)
class AlterOptions:
    """ALTER SOURCE|TABLE|MATERIALIZED VIEW|SINK ... SET (name = 'value'). `late_rows`, `on_error`: of a view, None: as before."""

    kind: ObjectKind
    name: str
    options: Options
    late_rows: LatePolicy | None = None
    on_error: ErrorPolicy | None = None


@dataclass(frozen=True, slots=True)
class Rename:
    """ALTER SOURCE|TABLE|VIEW|MATERIALIZED VIEW|SINK ... RENAME TO ...: the same object, with all that it has, under another name."""

    kind: ObjectKind
    name: str
    to: str


@dataclass(frozen=True, slots=True)
class Show:
    """SHOW SOURCES and so on; `like` filters the names, `relation` the indexes of one table or view."""

    kind: ObjectKind
    like: str | None = None
    relation: str | None = None


@dataclass(frozen=True, slots=True)
class ShowCreate:
    """SHOW CREATE MATERIALIZED VIEW v."""

    kind: ObjectKind
    name: str


@dataclass(frozen=True, slots=True)
class Describe:
    """DESCRIBE name."""

    name: str


@dataclass(frozen=True, slots=True)
class Drop:
    """DROP; `cascade` also drops what reads from it."""

    kind: ObjectKind
    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class Flush:
    """FLUSH: wait until the next epoch is committed."""


@dataclass(frozen=True, slots=True)
class Select:
    """A query over the views, run once as a batch."""

    query: Query


@dataclass(frozen=True, slots=True)
class Explain:
    """EXPLAIN of a query or of a CREATE."""

    statement: CreateSource | CreateView | CreateSink | Select


Statement: TypeAlias = (
    CreateSource
    | CreateView
    | CreateSink
    | CreateFunction
    | CreateIndex
    | Comment
    | SetParallelism
    | AlterOptions
    | Rename
    | Show
    | ShowCreate
    | Describe
    | Drop
    | Flush
    | Select
    | Explain
)
