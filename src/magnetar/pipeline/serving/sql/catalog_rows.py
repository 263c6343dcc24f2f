"""The rows of the system catalogs that tell of a pipeline's views, and of the types their columns have. A decision core.

Object ids are made of the ids of state tables, so that a view keeps its own for as long as it exists, on every connection.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from magnetar.pipeline.serving.sql.system_catalog import (
    INFORMATION_SCHEMA,
    PG_CATALOG,
    RELATIONS,
    SCHEMA,
    macro_statements,
    table_name,
    table_statements,
)
from magnetar.pipeline.serving.wire.types import BY_NAME, PgType, of_arrow

OWNER: Final = "magnetar"
OWNER_OID: Final = 10
CLASS_OID: Final = 1259
"""Of pg_class itself."""
PUBLIC_OID: Final = 2200
DATABASE_OID: Final = 16_383
FIRST_OID: Final = 16_384
"""The first that PostgreSQL gives to people's objects."""

INDEX_OIDS: Final = 1 << 30
"""Indexes of CREATE INDEX get numbers from here on."""

OIDS_PER_VIEW: Final = 4
"""The view, its type, its key's index, and the constraint."""

_SQL_NAMES: Final = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "bpchar": "character",
    "varchar": "character varying",
    "char": '"char"',
    "time": "time without time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
}


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """Of CREATE INDEX. `descending`: those of its columns."""

    name: str
    columns: tuple[str, ...]
    descending: tuple[str, ...] = ()

    def oid(self, taken: set[int]) -> int:
        """By its name, so that it is the same on every connection; above those of views."""
        number = INDEX_OIDS + zlib.crc32(self.name.encode()) % INDEX_OIDS
        while number in taken:
            number += 1
        taken.add(number)
        return number

    def definition(self, view: str) -> str:
        keys = ", ".join(f"{name} DESC" if name in self.descending else name for name in self.columns)
        return f"CREATE INDEX {self.name} ON public.{view} USING btree ({keys})"


@dataclass(frozen=True, slots=True)
class ViewEntry:
    """A view or table as clients see it. `kind`: m for a materialized view, r for a table, v for a view that keeps no rows. `key`: of the
    columns shown, empty where the key is hidden. `size_bytes`, `rows`: of its runs."""

    name: str
    table_id: int
    kind: str
    columns: pa.Schema
    key: tuple[str, ...]
    definition: str
    size_bytes: int = 0
    rows: int = 0
    indexes: tuple[IndexEntry, ...] = ()
    comments: Mapping[str, str] = field(default_factory=dict)
    """By lower-case column, under the empty name that of the view."""

    @property
    def oid(self) -> int:
        return FIRST_OID + OIDS_PER_VIEW * self.table_id


Row = Mapping[str, Any]


def base_statements() -> list[str]:
    """Of a fresh engine: empty catalogs, and the functions over them."""
    return [
        *table_statements(),
        f"CREATE TABLE {SCHEMA}._types (oid UINTEGER, typname VARCHAR, sql_name VARCHAR)",
        *macro_statements(),
    ]


def sql_name(kind: PgType) -> str:
    """The type's name in PostgreSQL's standard spelling."""
    if kind.element:
        return f"{_SQL_NAMES.get(kind.element, kind.element)}[]"
    return _SQL_NAMES.get(kind.name, kind.name)


def catalog_tables(database: str, views: Sequence[ViewEntry]) -> dict[str, pa.Table]:
    """By name in SCHEMA: the rows of every relation that has some."""
    found: dict[str, list[Row]] = {}

    def add(schema: str, name: str, rows: Iterable[Row]) -> None:
        found.setdefault(table_name(schema, name), []).extend(rows)

    for name, rows in (*_fixed(database).items(), *_of_views(database, views).items()):
        add(PG_CATALOG, name, rows)
    for name, rows in _information(database, views).items():
        add(INFORMATION_SCHEMA, name, rows)
    kinds = {table_name(schema, name): columns for schema, each in RELATIONS.items() for name, columns in each.items()}
    tables = {name: _table(rows, kinds[name]) for name, rows in found.items()}
    tables["_types"] = pa.Table.from_pylist(
        [{"oid": kind.oid, "typname": kind.name, "sql_name": sql_name(kind)} for kind in BY_NAME.values()]
    )
    objects = [each for view in views for each in _objects(view)]
    schema = pa.schema(
        [("oid", pa.uint32()), ("name", pa.string()), ("definition", pa.string()), ("bytes", pa.int64())]
    )
    tables["_objects"] = pa.Table.from_pylist(objects, schema=schema)
    return tables


_ARROW: Final = {
    "UINTEGER": pa.uint32(),
    "INTEGER": pa.int32(),
    "SMALLINT": pa.int16(),
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "DOUBLE": pa.float64(),
    "SMALLINT[]": pa.list_(pa.int16()),
    "UINTEGER[]": pa.list_(pa.uint32()),
    "VARCHAR[]": pa.list_(pa.string()),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "VARCHAR": pa.string(),
}

_NEVER_NULL: Final = {"UINTEGER": 0, "INTEGER": 0, "SMALLINT": 0, "BIGINT": 0, "BOOLEAN": False, "DOUBLE": 0.0}
"""What stands where nothing is said: catalogs have few NULLs among numbers."""


def _table(rows: Sequence[Row], kinds: Mapping[str, str]) -> pa.Table:
    columns = {name: [row.get(name, _NEVER_NULL.get(kind)) for row in rows] for name, kind in kinds.items()}
    return pa.table({name: pa.array(values, _ARROW[kinds[name]]) for name, values in columns.items()})


def _fixed(database: str) -> dict[str, list[Row]]:
    schemas = [(11, "pg_catalog"), (13_000, "information_schema"), (PUBLIC_OID, "public")]
    role = {
        "oid": OWNER_OID,
        "rolname": OWNER,
        "rolsuper": False,
        "rolinherit": True,
        "rolcanlogin": True,
        "rolconnlimit": -1,
    }
    return {
        "pg_namespace": [{"oid": oid, "nspname": name, "nspowner": OWNER_OID} for oid, name in schemas],
        "pg_roles": [role],
        "pg_authid": [role],
        "pg_user": [{"usename": OWNER, "usesysid": OWNER_OID}],
        "pg_database": [
            {
                "oid": DATABASE_OID,
                "datname": database,
                "datdba": OWNER_OID,
                "encoding": 6,
                "datallowconn": True,
                "datconnlimit": -1,
                "datcollate": "C.UTF-8",
                "datctype": "C.UTF-8",
                "datlocprovider": "c",
                "dattablespace": 1663,
            }
        ],
        "pg_tablespace": [{"oid": 1663, "spcname": "pg_default", "spcowner": OWNER_OID}],
        "pg_am": [
            {"oid": 2, "amname": "heap", "amtype": "t"},
            {"oid": 403, "amname": "btree", "amtype": "i"},
        ],
        "pg_collation": [
            {
                "oid": 100,
                "collname": "default",
                "collnamespace": 11,
                "collprovider": "d",
                "collisdeterministic": True,
                "collencoding": -1,
            },
            {
                "oid": 950,
                "collname": "C",
                "collnamespace": 11,
                "collprovider": "c",
                "collisdeterministic": True,
                "collencoding": -1,
            },
        ],
        "pg_language": [{"oid": 12, "lanname": "internal", "lanowner": OWNER_OID}],
        "pg_type": [_type(kind) for kind in BY_NAME.values()],
        "pg_settings": [],
    }


def _type(kind: PgType) -> Row:
    element = BY_NAME[kind.element].oid if kind.element else 0
    return {
        "oid": kind.oid, "typname": kind.name, "typnamespace": 11, "typowner": OWNER_OID, "typlen": kind.size,
        "typbyval": 0 < kind.size <= 8, "typtype": "p" if kind.category in "PX" else "b", "typcategory": kind.category,
        "typispreferred": False, "typisdefined": True, "typdelim": ",", "typelem": element, "typarray": kind.array, "typtypmod": -1,
        "typcollation": 100 if kind.category == "S" else 0, "typalign": "i", "typstorage": "x" if kind.size < 0 else "p",
        "typinput": 750 if kind.element else 0, "typsubscript": 0, "typnotnull": False,
    }  # fmt: skip


def _descriptions(view: ViewEntry) -> Iterable[Row]:
    numbers = {"": 0, **{name.lower(): at for at, name in enumerate(view.columns.names, 1)}}
    for name, text in view.comments.items():
        if name in numbers:
            yield {"objoid": view.oid, "classoid": CLASS_OID, "objsubid": numbers[name], "description": text}


def _of_views(database: str, views: Sequence[ViewEntry]) -> dict[str, list[Row]]:
    classes: list[Row] = []
    attributes: list[Row] = []
    types: list[Row] = []
    indexes: list[Row] = []
    constraints: list[Row] = []
    for view in views:
        common = {
            "relnamespace": PUBLIC_OID, "relowner": OWNER_OID, "relpersistence": "p", "relispopulated": True, "relreplident": "d",
            "relallvisible": 0,
        }  # fmt: skip
        classes.append(
            {**common, "oid": view.oid, "relname": view.name, "reltype": view.oid + 1, "relkind": view.kind,
             "relam": 0 if view.kind == "v" else 2,
             "relnatts": len(view.columns), "reltuples": float(view.rows),
             "relpages": 0 if view.kind == "v" else view.size_bytes // 8192 + 1,
             "relhasindex": bool(view.key or view.indexes)}
        )  # fmt: skip
        types.append(
            {"oid": view.oid + 1, "typname": view.name, "typnamespace": PUBLIC_OID, "typowner": OWNER_OID, "typlen": -1, "typtype": "c",
             "typcategory": "C", "typisdefined": True, "typdelim": ",", "typrelid": view.oid, "typtypmod": -1}
        )  # fmt: skip
        attributes += [_attribute(view.oid, number, field) for number, field in enumerate(view.columns, 1)]
        for made, oid in _with_oids(view):
            classes.append({**common, **_index_class(made, oid)})
            attributes += [_attribute(oid, at, view.columns.field(name)) for at, name in enumerate(made.columns, 1)]
            indexes.append(_index_row(view, made, oid))
        if not view.key:
            continue
        numbers = [view.columns.names.index(name) + 1 for name in view.key]
        index = f"{view.name}_key"
        classes.append({**common, **_index_class(IndexEntry(index, view.key), view.oid + 2)})
        attributes += [_attribute(view.oid + 2, at, view.columns.field(name)) for at, name in enumerate(view.key, 1)]
        indexes.append(
            {"indexrelid": view.oid + 2, "indrelid": view.oid, "indnatts": len(numbers), "indnkeyatts": len(numbers), "indisunique": True,
             "indnullsnotdistinct": True, "indimmediate": True, "indisvalid": True, "indisready": True, "indislive": True,
             "indkey": numbers, "indcollation": [0] * len(numbers), "indclass": [0] * len(numbers), "indoption": [0] * len(numbers)}
        )  # fmt: skip
        constraints.append(
            {"oid": view.oid + 3, "conname": index, "connamespace": PUBLIC_OID, "contype": "u", "convalidated": True, "conrelid": view.oid,
             "conindid": view.oid + 2, "conkey": numbers, "conislocal": True, "connoinherit": True}
        )  # fmt: skip
    return {
        "pg_description": [each for view in views for each in _descriptions(view)],
        "pg_class": classes, "pg_attribute": attributes, "pg_type": types, "pg_index": indexes, "pg_constraint": constraints,
        "pg_matviews": [
            {"schemaname": "public", "matviewname": view.name, "matviewowner": OWNER, "ispopulated": True,
             "hasindexes": bool(view.key or view.indexes), "definition": view.definition}
            for view in views if view.kind == "m"
        ],
        "pg_tables": [
            {"schemaname": "public", "tablename": view.name, "tableowner": OWNER, "hasindexes": bool(view.key or view.indexes)}
            for view in views if view.kind == "r"
        ],
        "pg_views": [
            {"schemaname": "public", "viewname": view.name, "viewowner": OWNER, "definition": view.definition}
            for view in views if view.kind == "v"
        ],
        "pg_indexes": [
            {"schemaname": "public", "tablename": view.name, "indexname": name, "indexdef": text}
            for view in views for name, text in _indexes_of(view)
        ],
    }  # fmt: skip


def _attribute(relation: int, number: int, column: pa.Field) -> Row:
    kind, modifier = of_arrow(column.type)
    return {
        "attrelid": relation, "attname": column.name, "atttypid": kind.oid, "attstattarget": -1, "attlen": kind.size, "attnum": number,
        "atttypmod": modifier, "attbyval": 0 < kind.size <= 8, "attalign": "i", "attstorage": "p" if kind.size > 0 else "x",
        "attcacheoff": -1, "attnotnull": not column.nullable, "attislocal": True, "attidentity": "", "attgenerated": "",
        "attcompression": "", "attcollation": 100 if kind.category == "S" else 0, "attndims": int(bool(kind.element)),
    }  # fmt: skip


def _index_class(made: IndexEntry, oid: int) -> Row:
    return {
        "oid": oid,
        "relname": made.name,
        "relkind": "i",
        "relam": 403,
        "relnatts": len(made.columns),
        "reltuples": 0.0,
    }


def _index_row(view: ViewEntry, made: IndexEntry, oid: int) -> Row:
    places = [view.columns.names.index(name) + 1 for name in made.columns]
    none = [0] * len(places)
    return {
        "indexrelid": oid, "indrelid": view.oid, "indnatts": len(places), "indnkeyatts": len(places), "indisunique": False,
        "indimmediate": True, "indisvalid": True, "indisready": True, "indislive": True, "indkey": places, "indcollation": none,
        "indclass": none, "indoption": [3 if name in made.descending else 0 for name in made.columns],
    }  # fmt: skip


def _indexes_of(view: ViewEntry) -> list[tuple[str, str]]:
    """Name and definition of each."""
    key = [(f"{view.name}_key", _index_definition(view))] if view.key else []
    return key + [(made.name, made.definition(view.name)) for made in view.indexes]


def _with_oids(view: ViewEntry) -> list[tuple[IndexEntry, int]]:
    taken: set[int] = set()
    return [(made, made.oid(taken)) for made in view.indexes]


def _index_definition(view: ViewEntry) -> str:
    return f"CREATE UNIQUE INDEX {view.name}_key ON public.{view.name} USING btree ({', '.join(view.key)}) NULLS NOT DISTINCT"


def _objects(view: ViewEntry) -> list[Row]:
    found: list[Row] = [{"oid": view.oid, "name": view.name, "definition": view.definition, "bytes": view.size_bytes}]
    found += [
        {"oid": oid, "name": made.name, "definition": made.definition(view.name), "bytes": 0}
        for made, oid in _with_oids(view)
    ]
    if view.key:
        found.append(
            {"oid": view.oid + 2, "name": f"{view.name}_key", "definition": _index_definition(view), "bytes": 0}
        )
        text = f"UNIQUE NULLS NOT DISTINCT ({', '.join(view.key)})"
        found.append({"oid": view.oid + 3, "name": f"{view.name}_key constraint", "definition": text, "bytes": 0})
    return found


def _information(database: str, views: Sequence[ViewEntry]) -> dict[str, list[Row]]:
    names = ("pg_catalog", "information_schema", "public")
    place = {"table_catalog": database, "table_schema": "public"}
    columns: list[Row] = []
    for view in views:
        for number, column in enumerate(view.columns, 1):
            kind, modifier = of_arrow(column.type)
            scaled = kind.name == "numeric" and modifier > 0
            columns.append(
                {**place, "table_name": view.name, "column_name": column.name, "ordinal_position": number, "column_default": None,
                 "is_nullable": "YES" if column.nullable else "NO", "data_type": "ARRAY" if kind.element else sql_name(kind),
                 "udt_catalog": database, "udt_schema": "pg_catalog", "udt_name": kind.name, "is_updatable": "NO", "is_identity": "NO",
                 "is_generated": "NEVER", "character_maximum_length": None, "datetime_precision": 6 if kind.category == "D" else None,
                 "numeric_precision": (modifier - 4) >> 16 if scaled else _BITS.get(kind.name),
                 "numeric_scale": (modifier - 4) & 0xFFFF if scaled else 0 if kind.name in ("int2", "int4", "int8") else None}
            )  # fmt: skip
    keyed = [view for view in views if view.key]
    own = {"constraint_catalog": database, "constraint_schema": "public"}
    return {
        "schemata": [{"catalog_name": database, "schema_name": name, "schema_owner": OWNER} for name in names],
        "tables": [
            {**place, "table_name": view.name, "table_type": _TABLE_TYPES[view.kind],
             "is_insertable_into": "NO", "is_typed": "NO"}
            for view in views
        ],
        "views": [
            {**place, "table_name": view.name, "view_definition": view.definition, "check_option": "NONE", "is_updatable": "NO",
             "is_insertable_into": "NO", "is_trigger_updatable": "NO", "is_trigger_deletable": "NO",
             "is_trigger_insertable_into": "NO"}
            for view in views if view.kind == "v"
        ],
        "columns": columns,
        "table_constraints": [
            {**place, **own, "table_name": view.name, "constraint_name": f"{view.name}_key", "constraint_type": "UNIQUE",
             "is_deferrable": "NO", "initially_deferred": "NO", "enforced": "YES"}
            for view in keyed
        ],
        "key_column_usage": [
            {**place, **own, "table_name": view.name, "constraint_name": f"{view.name}_key", "column_name": name, "ordinal_position": at}
            for view in keyed for at, name in enumerate(view.key, 1)
        ],
    }  # fmt: skip


_TABLE_TYPES: Final = {"m": "MATERIALIZED VIEW", "r": "BASE TABLE", "v": "VIEW"}

_BITS: Final = {"int2": 16, "int4": 32, "int8": 64, "float4": 24, "float8": 53}
