"""Where a query that DuckDB takes would mean something else than in PostgreSQL: said differently, or refused. A decision core."""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp

from magnetar.pipeline.serving.sql.result_names import Node

_CODES: Final = ("Encode", "Decode", "DecodeCase", "ToBinary")


def same_in_duckdb(node: Node) -> Node:
    """What means in DuckDB what the node means in PostgreSQL; the node itself where it does already."""
    if isinstance(node, exp.Extract) and node.name.upper() in ("SECOND", "SECONDS"):
        # DuckDB's seconds are whole ones
        exact = exp.Extract(this=exp.var("MICROSECONDS"), expression=node.expression)
        return exp.Div(this=exp.Cast(this=exact, to=exp.DataType.build("DOUBLE")), expression=exp.Literal.number("1e6"))
    if isinstance(node, exp.SimilarTo) and isinstance(node.expression, exp.Literal):
        pattern = exp.Literal.string(similar_pattern(node.expression.name))
        return exp.Anonymous(this="regexp_full_match", expressions=[node.this, pattern])
    if isinstance(node, exp.Anonymous) and node.name.lower() == "every":
        return exp.Anonymous(this="bool_and", expressions=[each.copy() for each in node.expressions])
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Star):
        return exp.Anonymous(this="unnest", expressions=[node.this.copy()])
    return node


def refusal(node: Node) -> str | None:
    """Why a node is not translated: what would be silently another value."""
    if isinstance(node, exp.SimilarTo):
        return "SIMILAR TO takes a literal pattern here; or write ~ with a regular expression"
    if isinstance(node, exp.TimeToStr | exp.StrToTime | exp.StrToDate):
        form = node.args.get("format")
        if not isinstance(form, exp.Literal):
            return "the format of to_char, to_date and to_timestamp must be a literal"
        left = re.sub(r"%-?[A-Za-z]", "", form.name)
        unknown = re.search(r"[A-Za-z]+", left)
        if unknown is not None or "%u" in form.name:
            return "to_char, to_date and to_timestamp know YYYY, MM, DD, HH24, HH12, MI, SS, US and AM here, and this format has more"
    if type(node).__name__ in _CODES or (isinstance(node, exp.Anonymous) and node.name.lower() in ("encode", "decode")):
        return "encode and decode are not supported; hex(x), unhex(x), to_base64(x) and from_base64(x) are"
    return None


def similar_pattern(pattern: str) -> str:
    """A pattern of SIMILAR TO as a regular expression of the whole text: % and _ are its wildcards, a dot, ^ and $ mean themselves."""
    found, at = [], 0
    while at < len(pattern):
        sign = pattern[at]
        if sign == "\\" and at + 1 < len(pattern):
            at += 1
            found.append(re.escape(pattern[at]))
        else:
            found.append({"%": "(?s:.*)", "_": "(?s:.)", ".": r"\.", "^": r"\^", "$": r"\$"}.get(sign, sign))
        at += 1
    return "".join(found)
