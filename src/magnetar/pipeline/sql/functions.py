"""PostgreSQL's functions by name: what each becomes in Spark. Any other name is Spark's own function."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from sqlglot import exp

from magnetar.pipeline.errors import SqlError
from magnetar.pipeline.sql import json_functions, nested_values
from magnetar.pipeline.sql.python_functions import CALLED, VALUE
from magnetar.pipeline.sql.typed import ArrayKind, kind, of_kind, refused, spark_of, sub_text, text_of, truncated_time

Arguments: TypeAlias = list[exp.Expr]
Builder: TypeAlias = Callable[[Arguments], exp.Expr]


def call(name: str, given: Arguments) -> exp.Expr:
    """Raises SqlError."""
    rule = FUNCTIONS.get(name)
    if rule is None and name.startswith(CALLED.upper()):
        return exp.Dot(this=exp.Anonymous(this=name.lower(), expressions=given), expression=exp.to_identifier(VALUE))
    if rule is None:
        return exp.Anonymous(this=name.lower(), expressions=given)
    return rule(given)


def _template(found: str | None, *by_count: str, first: int = 1) -> Builder:
    """The template for each number of arguments from `first` on; a kind of `=` is that of the first argument."""

    def build(given: Arguments) -> exp.Expr:
        at = len(given) - first
        if not 0 <= at < len(by_count):
            raise SqlError(f"expected {first} to {first + len(by_count) - 1} arguments, found {len(given)}")
        return of_kind(spark_of(by_count[at], *given), kind(given[0]) if found == "=" else found)

    return build


def _refusing(what: str, instead: str) -> Builder:
    def build(_: Arguments) -> exp.Expr:
        raise refused(what, instead)

    return build


def _text(node: exp.Expr, what: str) -> str:
    if not isinstance(node, exp.Literal) or not node.is_string:
        raise SqlError(f"{what} is written as a literal here: it is translated once, not for each row")
    return node.name


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _concat(given: Arguments) -> exp.Expr:
    return of_kind(
        spark_of(f"CONCAT({', '.join(f'_{n}' for n in range(len(given)))})", *(_or_empty(each) for each in given)),
        "text",
    )


def _shown(node: exp.Expr) -> exp.Expr:
    """As a function of any arguments shows it, which of a boolean is one letter."""
    return of_kind(spark_of("IF(_0, 't', 'f')", node), "text") if kind(node) == "bool" else text_of(node)


def _or_empty(node: exp.Expr) -> exp.Expr:
    if kind(node) == "bool":
        return of_kind(spark_of("CASE WHEN _0 THEN 't' WHEN NOT _0 THEN 'f' ELSE '' END", node), "text")
    return of_kind(spark_of("COALESCE(_0, '')", text_of(node)), "text")


def _concat_ws(given: Arguments) -> exp.Expr:
    parts = [
        given[0],
        *(
            spark_of("CASE WHEN _0 THEN 't' WHEN NOT _0 THEN 'f' END", e) if kind(e) == "bool" else text_of(e)
            for e in given[1:]
        ),
    ]
    return of_kind(spark_of(f"CONCAT_WS({', '.join(f'_{n}' for n in range(len(parts)))})", *parts), "text")


def _format(given: Arguments) -> exp.Expr:
    pieces: Arguments = []
    rest = list(given[1:])
    for piece in re.split(r"(%[^%]|%%)", _text(given[0], "the format")):
        if piece == "%%":
            pieces.append(exp.Literal.string("%"))
        elif piece.startswith("%"):
            if piece != "%s" or not rest:
                raise refused(f"format() with {piece}", "write %s, one for each argument")
            pieces.append(_or_empty(rest.pop(0)))
        elif piece:
            pieces.append(exp.Literal.string(piece))
    return (
        of_kind(spark_of(f"CONCAT({', '.join(f'_{n}' for n in range(len(pieces)))})", *pieces), "text")
        if len(pieces) < 10
        else _many(pieces)
    )


def _many(pieces: Arguments) -> exp.Expr:
    return of_kind(exp.Anonymous(this="concat", expressions=pieces), "text")


def _round(given: Arguments) -> exp.Expr:
    if len(given) == 1 and kind(given[0]) == "float":
        return of_kind(spark_of("RINT(_0)", given[0]), "float")
    if len(given) == 2 and kind(given[0]) == "float":
        raise SqlError("PostgreSQL has no round(double precision, int); write round(x::numeric, n)")
    if len(given) == 1 and kind(given[0]) == "int":
        return of_kind(spark_of("CAST(_0 AS DOUBLE)", given[0]), "float")
    if len(given) == 1 and kind(given[0]) is None:
        return spark_of("CASE WHEN TYPEOF(_0) IN ('double', 'float') THEN RINT(_0) ELSE ROUND(_0) END", given[0])
    return _template("=", "ROUND(_0)", "ROUND(_0, _1)")(given)


def _trunc(given: Arguments) -> exp.Expr:
    if len(given) == 1 and kind(given[0]) == "float":
        whole = "IF(ABS(_0) < 9e15, CAST(IF(_0 < 0, CEIL(_0), FLOOR(_0)) AS DOUBLE), _0)"
        return of_kind(spark_of(whole, given[0]), "float")
    if len(given) != 1 or kind(given[0]) not in ("numeric", "int"):
        raise refused("this trunc()", "write trunc(x) of a number whose type is known, or date_trunc('day', ts)")
    if kind(given[0]) == "int":
        return of_kind(spark_of("CAST(_0 AS DOUBLE)", given[0]), "float")
    return of_kind(spark_of("IF(_0 < 0, CEIL(_0), FLOOR(_0))", given[0]), kind(given[0]))


_OUTPUT: Final = {
    "HH24": "HH", "HH12": "hh", "HH": "hh", "MI": "mm", "SS": "ss", "MS": "SSS", "US": "SSSSSS", "YYYY": "yyyy", "MM": "MM", "DD": "dd",
    "DDD": "DDD", "AM": "a", "PM": "a", "Mon": "MMM", "Dy": "EEE",
}  # fmt: skip
_TOKEN: Final = re.compile(r"(?i:HH24|HH12|HH|MI|SS|MS|US|YYYY|MM|DDD|DD)|AM|PM|Mon|Dy|\"[^\"]*\"|[^A-Za-z0-9]|.")
"""In any case where it is a number: `mm` is the month wherever it stands."""


def _pattern(text: str, what: str) -> str:
    """A format of PostgreSQL's as Spark's pattern."""
    found = ""
    for token in _TOKEN.findall(text):
        if token in _OUTPUT or (
            token.isalnum() and token.upper() in _OUTPUT and len(token) > 1 and token.upper() not in ("AM", "PM")
        ):
            found += _OUTPUT[token if token in _OUTPUT else token.upper()]
        elif token.startswith('"') or not token.isalnum():
            found += "'" + token.strip('"').replace("'", "''") + "'"
        else:
            raise refused(f"{token!r} in the format of {what}", f"take {', '.join(_OUTPUT)} and signs between them")
    return found.replace("''", "") if "'''" not in found else found


def _to_char(given: Arguments) -> exp.Expr:
    if len(given) != 2 or kind(given[0]) not in ("date", "timestamp", "timestamptz"):
        raise refused("to_char of what is not a time", "write x::text, or round(x, 2)::text")
    return of_kind(
        spark_of(f"DATE_FORMAT(_0, {_quoted(_pattern(_text(given[1], 'the format'), 'to_char'))})", given[0]), "text"
    )


_STRFTIME: Final = {
    "%Y": "yyyy", "%m": "MM", "%d": "dd", "%H": "HH", "%I": "hh", "%M": "mm", "%S": "ss", "%f": "SSSSSS", "%p": "a",
    "%j": "DDD", "%b": "MMM",
}  # fmt: skip


def parsed_time(node: exp.Expr) -> exp.Expr:
    """`to_timestamp(text, format)`, whose format the parser has read as strftime's."""
    pattern = ""
    for token in re.findall(r"%.|[^%]", _text(node.args["format"], "the format")):
        if token not in _STRFTIME and token.isalnum():
            raise refused(
                f"{token!r} in the format of to_timestamp", "take YYYY, MM, DD, HH24, MI, SS, US and signs between them"
            )
        pattern += _STRFTIME.get(token, token if not token.isalpha() else "")
    return of_kind(spark_of(f"TRY_TO_TIMESTAMP(_0, {_quoted(pattern)})", node.this), "timestamptz")


def _to_time(kind_: str) -> Builder:
    def build(given: Arguments) -> exp.Expr:
        if len(given) == 1 and kind_ == "timestamptz" and kind(given[0]) != "text":
            return of_kind(spark_of("TIMESTAMP_MICROS(TRY_CAST(RINT(_0 * 1000000) AS BIGINT))", given[0]), kind_)
        if len(given) != 2:
            raise SqlError(f"write to_{'date' if kind_ == 'date' else 'timestamp'}(text, 'YYYY-MM-DD')")
        pattern = _quoted(_pattern(_text(given[1], "the format"), "a time"))
        parsed = f"TRY_TO_TIMESTAMP(_0, {pattern})"
        return of_kind(spark_of(f"CAST({parsed} AS DATE)" if kind_ == "date" else parsed, given[0]), kind_)

    return build


def _regexp_replace(given: Arguments) -> exp.Expr:
    if len(given) not in (3, 4):
        raise SqlError("write regexp_replace(text, pattern, replacement [, flags])")
    flags = _text(given[3], "the flags") if len(given) == 4 else ""
    if set(flags) - set("gi"):
        raise refused(f"the flags {flags!r} of regexp_replace", "take g and i")
    pattern, replacement = _text(given[1], "the pattern"), _text(given[2], "the replacement")
    first = "g" not in flags
    shift = 2 if first else 0
    out = "${1}".replace("{1}", "1") if first else ""
    for piece in re.split(r"(\\\d|\\&|\\\\)", replacement.replace("\\\\", "\\\\")):
        if re.fullmatch(r"\\\d", piece):
            out += f"${int(piece[1]) + shift}" if piece != "\\0" else ""
        elif piece == "\\&":
            out += "$2" if first else "$0"
        else:
            out += piece.replace("\\\\", "\\").replace("\\", "\\\\").replace("$", "\\$")
    whole = f"\\A((?s:.*?))({pattern})" if first else pattern
    if first and re.search(r"\\\d", pattern):
        raise refused("a back reference within the pattern of regexp_replace", "give the flag g, or match without it")
    if "i" in flags:
        whole = f"(?i){whole}"
    return of_kind(spark_of(f"REGEXP_REPLACE(_0, {_quoted(whole)}, {_quoted(out)})", given[0]), "text")


def _encode(given: Arguments) -> exp.Expr:
    form = _text(given[1], "the form").lower() if len(given) == 2 else ""
    if form == "hex":
        return of_kind(spark_of("LOWER(HEX(_0))", given[0]), "text")
    raise refused(f"encode(..., {form!r})", "take 'hex'")


def _log(given: Arguments) -> exp.Expr:
    if len(given) == 1:
        return of_kind(spark_of("CASE WHEN _0 > 0 THEN LOG(10, _0) END", given[0]), "float")
    return of_kind(spark_of("CASE WHEN _0 > 0 AND _1 > 0 THEN LOG(_0, _1) END", *given), "float")


def _power(given: Arguments) -> exp.Expr:
    value = "POWER(_0, _1)"
    bad = f"(ISNAN({value}) AND NOT ISNAN(_0) AND NOT ISNAN(_1)) OR (_0 = 0 AND _1 < 0)"
    lost = f"ABS({value}) = DOUBLE('Infinity') AND ABS(_0) < DOUBLE('Infinity') AND ABS(_1) < DOUBLE('Infinity')"
    return of_kind(spark_of(f"CASE WHEN NOT (({bad}) OR ({lost})) THEN {value} END", *given), "float")


def _date_trunc(given: Arguments) -> exp.Expr:
    if len(given) != 2:
        raise refused("date_trunc with a time zone", "write date_trunc('day', ts AT TIME ZONE 'zone')")
    return truncated_time(_text(given[0], "the unit"), given[1])


def _substr(given: Arguments) -> exp.Expr:
    if len(given) not in (2, 3):
        raise SqlError("write substr(text, position [, length])")
    return sub_text(given[0], given[1], given[2] if len(given) == 3 else None)


def _array_length(given: Arguments) -> exp.Expr:
    if len(given) != 2 or given[1].name != "1":
        raise refused("the length of another dimension than 1", "write array_length(a, 1) or cardinality(a)")
    return of_kind(spark_of("NULLIF(SIZE(_0), 0)", given[0]), "int")


def _tumble(given: Arguments) -> exp.Expr:
    """Where the tumbling window of so many microseconds begins that a time is in."""
    micros = "UNIX_MICROS(CAST(_0 AS TIMESTAMP))"
    found = kind(given[0]) if kind(given[0]) in ("timestamp", "timestamptz") else "timestamp"
    return of_kind(spark_of(f"TIMESTAMP_MICROS({micros} - PMOD({micros}, CAST(_1 AS BIGINT)))", *given), found)


def _regexp_match(given: Arguments) -> exp.Expr:
    """The groups of the first match, or the match itself where there are none; NULL where nothing matches."""
    if len(given) not in (2, 3):
        raise SqlError("write regexp_match(text, pattern [, flags])")
    flags = _text(given[2], "the flags") if len(given) == 3 else ""
    if set(flags) - {"i"}:
        raise refused(f"the flags {flags!r} of regexp_match", "take i")
    pattern = _text(given[1], "the pattern")
    groups = _groups(pattern)
    if groups is None:
        raise refused(
            "regexp_match with a group that may take no part in a match",
            "let each group match, if need be the empty text: (a|)",
        )
    found = _quoted(f"(?i){pattern}" if "i" in flags else pattern)
    numbers = range(1, groups + 1) if groups else (0,)
    values = ", ".join(f"REGEXP_EXTRACT(_0, {found}, {number})" for number in numbers)
    return of_kind(spark_of(f"CASE WHEN _0 RLIKE {found} THEN ARRAY({values}) END", given[0]), ArrayKind.of("text"))


def _groups(pattern: str) -> int | None:
    """How many groups it captures; None where one may take no part in a match: in an alternative, or where it is repeated zero times."""
    plain = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "_", pattern)
    opened: list[tuple[bool, int]] = []
    alternatives, captured = [False], 0
    for at, character in enumerate(plain):
        if character == "(":
            captures = plain[at + 1 : at + 2] != "?"
            opened.append((captures, captured))
            captured += captures
            alternatives.append(False)
        elif character == "|":
            alternatives[-1] = True
        elif character == ")" and opened:
            captures, before = opened.pop()
            inside = captured - before - captures
            skipped = plain[at + 1 : at + 2] in ("?", "*") or plain[at + 1 : at + 3] in ("{0", "{,")
            if (alternatives.pop() and inside) or (skipped and captured > before):
                return None
    return None if alternatives[0] and captured else captured


FUNCTIONS: Final[dict[str, Builder]] = {
    "__TUMBLE": _tumble,
    "REGEXP_MATCH": _regexp_match,
    "ABS": _template("=", "ABS(_0)"),
    "ARRAY_APPEND": _template("array", "ARRAY_APPEND(COALESCE(_0, ARRAY()), _1)", first=2),
    "ARRAY_LENGTH": _array_length,
    "ARRAY_POSITION": _template("int", "NULLIF(ARRAY_POSITION(_0, _1), 0)", first=2),
    "ARRAY_REMOVE": _template("array", "ARRAY_REMOVE(_0, _1)", first=2),
    "ARRAY_TO_STRING": _refusing("array_to_string", "write array_join(a, ',') for an array of text"),
    "ASCII": _template("int", "ASCII(_0)"),
    "BTRIM": _template("text", "TRIM(_0)", "TRIM(BOTH _1 FROM _0)"),
    "CARDINALITY": _template("int", "SIZE(_0)"),
    "CBRT": _template("float", "CBRT(_0)"),
    "CONCAT": _concat,
    "CONCAT_WS": _concat_ws,
    "DATE_TRUNC": _date_trunc,
    "DIV": _template("numeric", "CAST(_0 DIV NULLIF(_1, 0) AS DECIMAL(20, 0))", first=2),
    "ENCODE": _encode,
    "EXP": _template(
        "float", "CASE WHEN NOT (EXP(_0) = DOUBLE('Infinity') AND _0 < DOUBLE('Infinity')) THEN EXP(_0) END"
    ),
    "FACTORIAL": _refusing("factorial", "Spark's ends at 20"),
    "FORMAT": _format,
    "GENERATE_SERIES": _refusing(
        "generate_series() within an expression", "write FROM t, generate_series(1, t.n) AS g(i)"
    ),
    "GREATEST": lambda given: of_kind(exp.Greatest(this=given[0], expressions=given[1:]), kind(given[0])),
    "JSONB_BUILD_ARRAY": json_functions.build_array,
    "JSONB_BUILD_OBJECT": json_functions.build_object,
    "JSON_BUILD_ARRAY": json_functions.build_array,
    "JSON_BUILD_OBJECT": json_functions.build_object,
    "TO_JSON": json_functions.to_json,
    "TO_JSONB": json_functions.to_json,
    "JSONB_ARRAY_LENGTH": _template("int", "JSON_ARRAY_LENGTH(_0)"),
    "JSONB_EXTRACT_PATH": _refusing("jsonb_extract_path", "write j -> 'a' -> 'b'"),
    "JSON_EXTRACT_PATH": _refusing("json_extract_path", "write j -> 'a' -> 'b'"),
    "LEAST": lambda given: of_kind(exp.Least(this=given[0], expressions=given[1:]), kind(given[0])),
    "LEFT": _template("text", "IF(_1 < 0, SUBSTRING(_0, 1, GREATEST(LENGTH(_0) + _1, 0)), LEFT(_0, _1))", first=2),
    "LN": _template("float", "CASE WHEN _0 > 0 THEN LN(_0) END"),
    "LOG": _log,
    "LOG10": _log,
    "LPAD": _template("text", "LPAD(_0, _1)", "IF(_2 = '', LEFT(_0, IF(_1 < 0, 0, _1)), LPAD(_0, _1, _2))", first=2),
    "MD5": _template("text", "MD5(_0)"),
    "MOD": lambda given: of_kind(spark_of("(_0 % NULLIF(_1, 0))", *given), kind(given[0])),
    "POW": _power,
    "POWER": _power,
    "REGEXP_COUNT": _template("int", "REGEXP_COUNT(_0, _1)", first=2),
    "REGEXP_INSTR": _refusing("regexp_instr", "write strpos(x, y)"),
    "REGEXP_REPLACE": _regexp_replace,
    "REGEXP_SPLIT_TO_ARRAY": _template("array", "SPLIT(_0, _1)", first=2),
    "REGEXP_SUBSTR": _template("text", "REGEXP_SUBSTR(_0, _1)", first=2),
    "REPEAT": _template("text", "REPEAT(_0, _1)", first=2),
    "REVERSE": _template("text", "REVERSE(_0)"),
    "RIGHT": _template(
        "text",
        "CASE WHEN _1 < 0 THEN SUBSTRING(_0, 1 - _1) WHEN _1 = 0 THEN SUBSTRING(_0, 1, 0) ELSE RIGHT(_0, _1) END",
        first=2,
    ),
    "ROUND": _round,
    "RPAD": _template("text", "RPAD(_0, _1)", "IF(_2 = '', LEFT(_0, IF(_1 < 0, 0, _1)), RPAD(_0, _1, _2))", first=2),
    "OCTET_LENGTH": _template("int", "OCTET_LENGTH(_0)"),
    "SIGN": lambda given: (
        of_kind(spark_of("CAST(SIGN(_0) AS DECIMAL(1, 0))", *given), "numeric")
        if [kind(each) for each in given] == ["numeric"]
        else _template("float", "IF(ISNAN(_0), 0, SIGN(_0))")(given)
    ),
    "SPLIT_PART": _template(
        "text", "IF(_1 = '', IF(_2 IN (1, -1), _0, IF(_2 = 0, NULL, '')), SPLIT_PART(_0, _1, NULLIF(_2, 0)))", first=3
    ),
    "SQRT": _template("float", "CASE WHEN _0 >= 0 THEN SQRT(_0) END"),
    "STRING_TO_ARRAY": _refusing("string_to_array", "write split(x, pattern), which is Spark's"),
    "SUBSTR": _substr,
    "TO_CHAR": _to_char,
    "TO_DATE": _to_time("date"),
    "TO_NUMBER": _refusing("to_number", "write x::numeric"),
    "TO_TIMESTAMP": _to_time("timestamptz"),
    "TRANSLATE": _template("text", "TRANSLATE(_0, _1, _2)", first=3),
    "TRUNC": _trunc,
    "UNNEST": _refusing("unnest() within an expression", "write FROM t, unnest(t.a) AS u(x)"),
    "JSON_ARRAY_LENGTH": _template("int", "JSON_ARRAY_LENGTH(_0)"),
    "PI": lambda _: of_kind(exp.Anonymous(this="pi", expressions=[]), "float"),
    "WIDTH_BUCKET": _refusing("width_bucket", "write floor((x - low) / step)"),
}
FUNCTIONS.update(nested_values.FUNCTIONS)
FUNCTIONS.update(
    {
        name: _refusing(name.lower(), instead)
        for names, instead in {
            "ANY_VALUE MODE": "it depends on the order of rows; take min() or max()",
            "CURRENT_DATABASE CURRENT_SCHEMA CURRENT_USER SESSION_USER USER VERSION": "a view has no session",
            "CRC32": "it takes other types",
            "TIME": "write to_char(ts, 'HH24:MI:SS')",
            "ROW_TO_JSON": "write jsonb_build_object('a', a, 'b', b); a sink with ENCODE JSON makes JSON of rows",
            "XPATH": "take JSON",
            "MAKE_DATE MAKE_INTERVAL MAKE_TIMESTAMP": "write (y || '-' || m || '-' || d)::date",
            "PERCENTILE_DISC": "write percentile_cont",
        }.items()
        for name in names.split()
    }
)
