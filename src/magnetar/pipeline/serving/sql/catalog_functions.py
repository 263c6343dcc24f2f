"""What clients ask a PostgreSQL server about itself, as expressions that DuckDB answers. A decision core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from magnetar.pipeline.serving.sql.result_names import Node
from magnetar.pipeline.serving.sql.system_catalog import MACROS, PG_CATALOG, SCHEMA

_REGISTERED: Final = frozenset(("regclass", "regtype", "regproc", "regprocedure", "regnamespace", "regrole", "regoper"))

_TEXTS: Final = frozenset(
    ("name", "char", '"char"', "aclitem", "pg_node_tree", "cstring", "regconfig", "bpchar", "citext")
)

_NUMBERS: Final = frozenset(("oid", "xid", "cid"))


def rewritten(node: Node, user: str, database: str, settings: Mapping[str, str]) -> Node:
    """The node itself where nothing differs."""
    if isinstance(node, exp.Dot) and node.this.name.lower() == PG_CATALOG:
        return node.expression  # has been rewritten: parts come before the whole
    if isinstance(node, exp.Collate) and node.expression.name.lower() in ("default", "c", "posix", "ucs_basic"):
        return node.this
    if type(node).__name__ == "Operator":
        return _operator(node)
    if isinstance(node, exp.Cast):
        return _cast(node)
    if isinstance(node, exp.Func | exp.Column):
        return _about_itself(node, user, database, settings) or _macro(node) or node
    if isinstance(node, exp.SessionUser if hasattr(exp, "SessionUser") else ()):
        return exp.Literal.string(user)
    return node


def _operator(node: Node) -> Node:
    """`OPERATOR(pg_catalog.~)` is `~`."""
    name = str(node.args.get("operator", "")).rpartition(".")[2]
    left, right = node.this, node.expression
    match name:
        case "~":
            return exp.RegexpLike(this=left, expression=right)
        case "!~":
            return exp.Not(this=exp.RegexpLike(this=left, expression=right))
        case "~~":
            return exp.Like(this=left, expression=right)
        case "=":
            return exp.EQ(this=left, expression=right)
        case "<>" | "!=":
            return exp.NEQ(this=left, expression=right)
    return node


def _type_name(kind: Node | None) -> str:
    if kind is None:
        return ""
    inner = kind.args.get("kind")
    text = str(inner if inner is not None else kind.sql("postgres"))
    return text.lower().removeprefix(f"{PG_CATALOG}.").removeprefix("information_schema.")


def _cast(node: exp.Cast) -> Node:
    kind = _type_name(node.args.get("to"))
    value = node.this
    if kind in _REGISTERED:
        if kind == "regclass":
            name = (
                "to_regclass"
                if isinstance(value, exp.Literal | exp.Parameter) and not value.is_int
                else "regclass_name"
            )
            return _own(name, value)
        if kind == "regtype":
            if isinstance(value, exp.Literal) and value.is_string and not value.name.isdigit():
                return _own("to_regtype", value)
            return _own("regtype_name", value)
        return exp.Cast(this=value, to=exp.DataType.build("TEXT"))
    if kind in _NUMBERS:
        return exp.Cast(this=value, to=exp.DataType.build("UINTEGER", dialect="duckdb"))
    if kind in _TEXTS or kind in ("sql_identifier", "character_data", "yes_or_no"):
        return exp.Cast(this=value, to=exp.DataType.build("TEXT"))
    if kind in ("cardinal_number",):
        return exp.Cast(this=value, to=exp.DataType.build("INT"))
    return node


def _about_itself(node: Node, user: str, database: str, settings: Mapping[str, str]) -> Node | None:
    name = _called(node)
    match name:
        case "current_user" | "session_user" | "user" | "current_role" | "getpgusername":
            return exp.Literal.string(user)
        case "current_database" | "current_catalog":
            return exp.Literal.string(database)
        case "current_schema":
            return exp.Literal.string("public")
        case "current_schemas":
            return exp.Array(expressions=[exp.Literal.string("pg_catalog"), exp.Literal.string("public")])
        case "version":
            return exp.Literal.string(settings.get("version", ""))
        case "current_setting":
            arguments = _arguments(node)
            wanted = arguments[0].name.lower() if arguments and isinstance(arguments[0], exp.Literal) else ""
            value = settings.get(wanted)
            return exp.Null() if value is None else exp.Literal.string(value)
        case "set_config":
            arguments = _arguments(node)
            return arguments[1].copy() if len(arguments) > 1 else None
        case "pg_backend_pid":
            return exp.Literal.number(settings.get("pid", "0"))
        case "pg_is_in_recovery":
            return exp.false()
    return None


def _called(node: Node) -> str:
    if isinstance(node, exp.Anonymous):
        return node.name.lower()
    if isinstance(node, exp.Column):
        # `user`, `session_user` and the like are read as columns where a dialect has no function for them
        bare = node.name.lower() if not node.table and not node.this.args.get("quoted") else ""
        return bare if bare in ("session_user", "current_catalog", "user", "current_role") else ""
    return {
        "CurrentUser": "current_user",
        "SessionUser": "session_user",
        "CurrentDatabase": "current_database",
        "CurrentCatalog": "current_catalog",
        "CurrentSchema": "current_schema",
        "CurrentSchemas": "current_schemas",
        "CurrentRole": "current_role",
        "Version": "version",
        "CurrentVersion": "version",
    }.get(type(node).__name__, node.sql_name().lower() if isinstance(node, exp.Func) else "")


def _arguments(node: Node) -> list[Node]:
    if isinstance(node, exp.Anonymous):
        return list(node.expressions)
    return [part for part in (node.args.get("this"), *node.args.get("expressions", ())) if hasattr(part, "sql")]


_RENAMED: Final = {
    "json_build_object": "json_object",
    "jsonb_build_object": "json_object",
    "json_build_array": "json_array",
    "jsonb_build_array": "json_array",
    "map_access": "map_extract_value",
    "map_cat": "map_concat",
    "map_from_key_values": "map",
    "map_length": "cardinality",
    "to_jsonb": "to_json",
    "jsonb_agg": "json_group_array",
    "jsonb_object_agg": "json_group_object",
}
"""Functions that DuckDB has by another name."""


def _macro(node: Node) -> Node | None:
    if isinstance(node, exp.Anonymous) and node.name.lower() in _RENAMED:
        return exp.Anonymous(this=_RENAMED[node.name.lower()], expressions=[each.copy() for each in node.expressions])
    if not isinstance(node, exp.Anonymous) or node.name.lower() not in MACROS:
        return None
    least = min(MACROS[node.name.lower()])
    arguments = list(node.expressions)
    if len(arguments) not in MACROS[node.name.lower()]:
        arguments = arguments[:least]
    return _own(node.name.lower(), *arguments)


def _own(name: str, *arguments: Node) -> Node:
    call = exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])
    return exp.Dot(this=exp.to_identifier(SCHEMA), expression=call)
