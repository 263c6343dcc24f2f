"""Expressions with PostgreSQL's meaning in Spark's words: what each function and operator becomes, or why it is refused.

sqlglot translates names; where Spark means something else by the same name, or names the same thing otherwise, the rule stands here.
What PostgreSQL refuses for one row (a division by zero, a text that is not a number) is NULL, as in RisingWave.
`tests/integration/pipeline/test_postgres_conformance.py` holds every rule beside a real server; its table is in docs/reference/sql.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.risingwave import RisingWave
from sqlglot.tokenizer_core import TokenType

from magnetar.pipeline.errors import SqlError
from magnetar.pipeline.sql import computed, json_functions, nested_values
from magnetar.pipeline.sql.aggregate_rules import array_agg, filtered, within_group
from magnetar.pipeline.sql.functions import call, parsed_time
from magnetar.pipeline.sql.typed import (
    KIND,
    NUMBERS,
    TIMES,
    MapKind,
    element_kind,
    kind,
    kind_of,
    of_kind,
    refused,
    spark_of,
    sub_text,
    text_of,
    truncated_time,
)

BY_NAME: Final = """
    ARRAY_LENGTH ARRAY_POSITION ARRAY_REMOVE ARRAY_TO_STRING BTRIM CONCAT CONCAT_WS CURRENT_TIME DIV ENCODE FORMAT GENERATE_SERIES
    GET_JSON_OBJECT JSONB_EXTRACT_PATH JSON_EXTRACT_PATH LEFT LOG LOG10 LOG2 LPAD MAKETIMESTAMP MD5 REGEXP_COUNT
    REGEXP_INSTR REGEXP_REPLACE REGEXP_SPLIT_TO_ARRAY REGEXP_SUBSTR RIGHT ROUND RPAD SHA256 SPLIT_PART STRING_TO_ARRAY SUBSTR TO_CHAR
    TO_DATE TO_NUMBER TOTIMESTAMP TRUNC WIDTH_BUCKET GREATEST LEAST MOD POW POWER SQRT EXP LN CBRT ASCII REPEAT REVERSE TRANSLATE
    UNNEST DATE_TRUNC SIGN ABS FACTORIAL MAP_KEYS MAP_VALUES MAP_FROM_ENTRIES MAP_ENTRIES MAP_DELETE MAP_INSERT MAP_CAT
    MAP_FROM_ARRAYS
"""
"""Functions that the parser leaves as they are written; all others become sqlglot's nodes."""


_WITHIN_TYPES: Final = ("WITH", "WITHOUT", "TIME", "ZONE", "PRECISION", "VARYING")


class PipelineSql(RisingWave):
    """RisingWave's dialect, with the functions of `BY_NAME` by the names that the user wrote."""

    class Parser(RisingWave.Parser):  # type: ignore[misc, valid-type]
        FUNC_TOKENS: ClassVar[set[TokenType]] = {*RisingWave.Parser.FUNC_TOKENS, TokenType.SESSION}
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            **RisingWave.Parser.NO_PAREN_FUNCTION_PARSERS,
            "MAP": lambda self: self._parse_map(),
        }
        LAMBDAS: ClassVar[dict[Any, Any]] = {}  # `f(j -> 'a')` takes a field of a JSON value
        FUNCTIONS: ClassVar[dict[str, Any]] = {
            **{name: build for name, build in RisingWave.Parser.FUNCTIONS.items() if name not in BY_NAME.split()},
            "EVERY": exp.LogicalAnd.from_arg_list,
            **json_functions.AGGREGATES,
        }

        def _parse_map(self) -> exp.Expr | None:
            """`MAP {...}`; MAP alone may be a name."""
            if not self._match(TokenType.L_BRACE):
                return None
            pairs: list[exp.Expr] = []
            while not self._match(TokenType.R_BRACE):
                key = self._parse_bitwise()
                if key is None or not self._match(TokenType.COLON):
                    self.raise_error("expected key: value in MAP {...}")
                pairs.append(exp.PropertyEQ(this=key, expression=self._parse_assignment()))
                if not self._match(TokenType.COMMA) and not self._match(TokenType.R_BRACE, advance=False):
                    self.raise_error("expected , or } in MAP {...}")
            return exp.ToMap(this=exp.Struct(expressions=pairs))

        def _parse_type(self, parse_interval: bool = True, fallback_to_identifier: bool = False) -> exp.Expr | None:
            """`date '2020-01-01'::text` is the text of a date; sqlglot takes it for the date of a text."""
            typed = self._at_typed_literal()
            found: exp.Expr | None = super()._parse_type(parse_interval, fallback_to_identifier)
            if not typed or not isinstance(found, exp.Cast) or isinstance(found.this, exp.Literal):
                return found
            literal, whole = found.this, found.this
            while not isinstance(literal, exp.Literal):
                if not isinstance(literal, exp.Expr):
                    return found
                literal = literal.this
            literal.replace(exp.Cast(this=literal.copy(), to=found.args["to"]))
            assert isinstance(whole, exp.Expr)
            return whole

        def _at_typed_literal(self) -> bool:
            if self._curr and self._curr.token_type == TokenType.INTERVAL:
                return False
            for token in self._tokens[self._index : self._index + 5]:
                if token.token_type == TokenType.STRING:
                    return token is not self._curr
                if token.token_type not in self.TYPE_TOKENS and token.text.upper() not in _WITHIN_TYPES:
                    return False
            return False


def translated(root: exp.Expr) -> exp.Expr:
    """An expression over columns with kinds, as Spark has to read it. Raises SqlError for what has no equal."""
    root = exp.Paren(this=root.copy())  # so that the root has a parent
    for node in reversed(list(root.dfs())):
        rule = _RULES.get(type(node))
        children, source = computed.below(node), computed.source_kind(node)
        if rule is None:
            if KIND not in node.meta and isinstance(node, exp.Predicate | exp.Connector | exp.Not):
                of_kind(node, "bool")
            computed.note(node, node, children, source)
            continue
        found = rule(node)
        computed.note(node, found, children, source)
        if found is not node:
            node.replace(found)
    inner = root.this
    if kind(inner) == "interval":
        raise SqlError(
            "an INTERVAL is not the value of a column or condition; write EXTRACT(EPOCH FROM ...), which is seconds"
        )
    assert isinstance(inner, exp.Expr)
    return inner


def _literal(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Literal):
        if node.is_string:
            return of_kind(node, "text")
        return of_kind(node, "int" if node.name.isdigit() else "float" if "e" in node.name.lower() else "numeric")
    return of_kind(node, "bool")


def _same(node: exp.Expr) -> exp.Expr:
    return of_kind(node, kind(node.this))


def _wider(left: str | None, right: str | None) -> str | None:
    both = {left, right}
    if None in both:
        return None
    for found in ("float", "numeric", "int"):
        if found in both and both <= set(NUMBERS):
            return found
    return left if left == right else None


def _sum(node: exp.Expr) -> exp.Expr:
    """`+`, `-` and `*`."""
    left, right = node.this, node.expression
    a, b = kind(left), kind(right)
    minus = isinstance(node, exp.Sub)
    if a == b == "date" and minus:
        return of_kind(spark_of("DATEDIFF(_0, _1)", left, right), "int")
    if a == "date" and b == "int":
        return of_kind(spark_of(f"DATE_{'SUB' if minus else 'ADD'}(_0, CAST(_1 AS INT))", left, right), "date")
    if a == "int" and b == "date" and not minus:
        return of_kind(spark_of("DATE_ADD(_1, CAST(_0 AS INT))", left, right), "date")
    if a in TIMES and b == "interval":
        if a == "date":
            return of_kind(spark_of(f"CAST(_0 AS TIMESTAMP) {'-' if minus else '+'} _1", left, right), "timestamp")
        return of_kind(node, a)
    if a == "interval" and b in TIMES:
        return of_kind(node, "timestamp" if b == "date" else b)
    if a in TIMES and b in TIMES:
        return of_kind(node, "interval")
    if "interval" in (a, b):
        return of_kind(node, "interval")
    if {a, b} <= {"int", "numeric"}:
        name = "ADD" if isinstance(node, exp.Add) else "SUBTRACT" if minus else "MULTIPLY"
        return of_kind(spark_of(f"TRY_{name}(_0, _1)", left, right), _wider(a, b))
    if _wider(a, b) == "float":
        sign = "+" if isinstance(node, exp.Add) else "-" if minus else "*"
        return _float_of(sign, left, right)
    return of_kind(node, _wider(a, b))


_INFINITY: Final = "DOUBLE('Infinity')"


def _float_of(sign: str, left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """`+ - * /` of floats: what leaves the range of its type, at either end, is an error in PostgreSQL."""
    finite = f"ABS(_0) < {_INFINITY}" + ("" if sign == "/" else f" AND ABS(_1) < {_INFINITY}")
    lost = [f"ABS(_0 {sign} _1) = {_INFINITY} AND {finite}"]
    if sign == "*":
        lost.append("_0 * _1 = 0 AND _0 <> 0 AND _1 <> 0")
    if sign == "/":
        lost.append(f"_0 / _1 = 0 AND _0 <> 0 AND ABS(_1) < {_INFINITY}")
    return of_kind(spark_of(f"CASE WHEN NOT (({') OR ('.join(lost)})) THEN _0 {sign} _1 END", left, right), "float")


def _div(node: exp.Expr) -> exp.Expr:
    left, right = node.this, node.expression
    a, b = kind(left), kind(right)
    if a == b == "int":
        return of_kind(spark_of("(_0 DIV NULLIF(_1, 0))", left, right), "int")
    if _wider(a, b) == "float":
        divisor = of_kind(spark_of("NULLIF(_0, 0)", right), b)
        return _float_of("/", left, divisor)
    if (a in NUMBERS and b in NUMBERS) or "interval" in (a, b):
        return of_kind(spark_of("(_0 / NULLIF(_1, 0))", left, right), _wider(a, b))
    whole = "('tinyint', 'smallint', 'int', 'bigint')"
    return spark_of(
        f"CASE WHEN TYPEOF(_0) IN {whole} AND TYPEOF(_1) IN {whole} THEN CAST(_0 / NULLIF(_1, 0) AS BIGINT) ELSE _0 / NULLIF(_1, 0) END",
        left,
        right,
    )


def _mod(node: exp.Expr) -> exp.Expr:
    return of_kind(
        spark_of("(_0 % NULLIF(_1, 0))", node.this, node.expression), _wider(kind(node.this), kind(node.expression))
    )


def _pipe(node: exp.Expr) -> exp.Expr:
    left, right = node.this, node.expression
    kinds = (kind(left), kind(right))
    if "array" in kinds:
        if kinds == ("array", "array"):
            return of_kind(spark_of("CONCAT(_0, _1)", left, right), "array")
        raise refused("an element || an array", "write array_append(a, x) or array_prepend(x, a)")
    if "json" in kinds:
        raise refused("|| of json", "build the object in the producer")
    return of_kind(exp.DPipe(this=text_of(left), expression=text_of(right), safe=True), "text")


_BOOLEAN_TEXT: Final = (
    "CASE WHEN LOWER(TRIM(_0)) IN ('t', 'tr', 'tru', 'true', 'y', 'ye', 'yes', 'on', '1') THEN TRUE "
    "WHEN LOWER(TRIM(_0)) IN ('f', 'fa', 'fal', 'fals', 'false', 'n', 'no', 'of', 'off', '0') THEN FALSE END"
)


def _cast(node: exp.Expr) -> exp.Expr:
    source, to = node.this, node.args["to"]
    a, b = kind(source), kind_of(to)
    spelled = str(to.sql("spark"))
    name = str(getattr(to.this, "value", to.this)).upper()
    if name in ("TIME", "TIMETZ"):
        raise refused("TIME", "write to_char(ts, 'HH24:MI:SS')")
    if b == "interval" or name in ("UUID",):
        return of_kind(node, b)
    if b == "text":
        length = to.expressions[0].name if to.expressions else ""
        found = text_of(source)
        return of_kind(spark_of(f"LEFT(_0, {length})", found), "text") if length.isdigit() else found
    if b == "json":
        return of_kind(source.copy(), "json")
    if b == "int" and a in ("numeric", "float"):
        return of_kind(spark_of(f"TRY_CAST({'RINT' if a == 'float' else 'ROUND'}(_0) AS {spelled})", source), "int")
    if b == "bool" and a == "text":
        return of_kind(spark_of(_BOOLEAN_TEXT, source), "bool")
    if b == "numeric" and not to.expressions:
        spelled = "DECIMAL(38, 10)" if a not in ("int",) else "DECIMAL(28, 0)"
        if a == "numeric":
            return of_kind(source.copy(), "numeric")
    if b in TIMES and a == "text":
        day = "'^\\\\s*\\\\d{4,6}-\\\\d{1,2}-\\\\d{1,2}([ T].*)?\\\\s*$'"
        return of_kind(spark_of(f"CASE WHEN _0 RLIKE {day} THEN TRY_CAST(_0 AS {_spark_time(str(b))}) END", source), b)
    if b == "timestamp":
        return of_kind(spark_of("CAST(_0 AS TIMESTAMP)", source), b)
    if b == "float" and a in ("text", "numeric", "float"):
        return _float_cast(source, spelled)
    if b == "numeric" or (b in NUMBERS and a in ("text", None, *NUMBERS)):
        return of_kind(spark_of(f"TRY_CAST(_0 AS {spelled})", source), b)
    return of_kind(node, b)


def _float_cast(source: exp.Expr, spelled: str) -> exp.Expr:
    """To REAL or DOUBLE; of a text only what PostgreSQL reads as a number, which is less than Spark does (`1d`)."""
    found = f"TRY_CAST(_0 AS {spelled})"
    if kind(source) == "text":
        read = f"_0 RLIKE {_NUMBER} AND NOT (ABS({found}) = {_INFINITY} AND _0 RLIKE '[0-9]')"
        lost = f"{found} = 0 AND _0 RLIKE '^[^eE]*[1-9]'"
    else:
        read = f"NOT (ABS({found}) = {_INFINITY} AND ABS(_0) < {_INFINITY})"
        lost = f"{found} = 0 AND _0 <> 0"
    return of_kind(spark_of(f"CASE WHEN {read} AND NOT ({lost}) THEN {found} END", source), "float")


_NUMBER: Final = "'(?i)^\\\\s*[+-]?(([0-9]+[.]?[0-9]*|[.][0-9]+)(e[+-]?[0-9]+)?|nan|inf|infinity)\\\\s*$'"


def _spark_time(found: str) -> str:
    return {"date": "DATE", "timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMP"}[found]


_MICROS: Final = "UNIX_MICROS(CAST({} AS TIMESTAMP))"
_PARTS: Final = {
    "DOW": "(EXTRACT(DOW FROM _0) - 1)",
    "ISODOW": "EXTRACT(DOW_ISO FROM _0)",
    "DOY": "EXTRACT(DOY FROM _0)",
    "YEAR": "EXTRACT(YEAR FROM _0)",
    "ISOYEAR": "EXTRACT(YEAROFWEEK FROM _0)",
    "QUARTER": "EXTRACT(QUARTER FROM _0)",
    "MONTH": "EXTRACT(MONTH FROM _0)",
    "WEEK": "EXTRACT(WEEK FROM _0)",
    "DAY": "EXTRACT(DAY FROM _0)",
    "HOUR": "EXTRACT(HOUR FROM _0)",
    "MINUTE": "EXTRACT(MINUTE FROM _0)",
    "SECOND": "EXTRACT(SECOND FROM _0)",
    "MILLISECOND": "(EXTRACT(SECOND FROM _0) * 1000)",
    "MICROSECOND": "CAST(EXTRACT(SECOND FROM _0) * 1000000 AS BIGINT)",
    "EPOCH": f"(CAST({_MICROS.format('_0')} AS DECIMAL(20, 0)) / 1000000)",
}


def _extract(node: exp.Expr) -> exp.Expr:
    part = node.this.name.upper().rstrip("S") if node.this.name.upper() not in _PARTS else node.this.name.upper()
    source = node.expression
    if part == "EPOCH" and kind(source) == "interval":
        inner = source.unnest()
        if isinstance(inner, exp.Sub):
            a, b = _MICROS.format("_0"), _MICROS.format("_1")
            return of_kind(
                spark_of(f"(CAST({a} - {b} AS DECIMAL(20, 0)) / 1000000)", inner.this, inner.expression), "numeric"
            )
        raise refused("EXTRACT of this interval", "write EXTRACT(EPOCH FROM a - b) of two times")
    if kind(source) == "interval" or part not in _PARTS:
        raise refused(f"EXTRACT({part} ...)", f"take one of {', '.join(_PARTS)} of a time")
    template = _PARTS[part]
    if kind(source) == "date" and part == "EPOCH":
        template = "(UNIX_DATE(_0) * CAST(86400 AS BIGINT))"
    if part not in ("SECOND", "MILLISECOND") and (part != "EPOCH" or kind(source) == "date"):
        template = f"CAST({template} AS DECIMAL(20, 0))"  # PostgreSQL's is a NUMERIC, of which 7 / 2 is 3.5
    return of_kind(spark_of(template, source), "numeric")


def _as_written(index: exp.Expr) -> exp.Expr:
    """The key of a map, which the parser has taken for an index."""
    is_number = isinstance(index, exp.Literal) and not index.is_string and index.name.isdigit()
    return of_kind(exp.Literal.number(int(index.name) + 1), "int") if is_number else index


def _bracket(node: exp.Expr) -> exp.Expr:
    """`a[i]`, which counts from 1; the parser has made the index count from 0."""
    if len(node.expressions) != 1 or isinstance(node.expressions[0], exp.Slice):
        raise refused("a slice of an array", "unnest it in the producer")
    index = node.expressions[0]
    if isinstance(kind(node.this), MapKind):
        return nested_values.at_key(node.this, _as_written(index))
    if isinstance(index, exp.Literal) and index.is_string:
        return node
    return of_kind(spark_of("GET(_0, CAST(_1 AS INT))", node.this, index), element_kind(node.this))


def _compared(node: exp.Expr) -> exp.Expr:
    """A comparison; of a value with the elements of an array where ANY or ALL is written."""
    other = node.expression
    called = other.name.upper() if isinstance(other, exp.Anonymous) else ""
    if isinstance(other, exp.Any | exp.All) or called in ("ANY", "ALL"):
        of_all = isinstance(other, exp.All) or called == "ALL"
        values = other.expressions[0] if called else other.this.unnest()
        found = "IF(SIZE(_0) = 0, FALSE, ARRAY_CONTAINS(_0, _1))"
        if isinstance(node, exp.EQ) and not of_all:
            return of_kind(spark_of(found, values, node.this), "bool")
        if isinstance(node, exp.NEQ) and of_all:
            return of_kind(spark_of(f"NOT {found}", values, node.this), "bool")
        raise refused("this comparison with ANY or ALL", "write x = ANY(array) or x <> ALL(array)")
    kinds = {kind(node.this), kind(other)}
    if kinds & {"struct", "map"}:
        raise SqlError("a STRUCT or MAP is not compared as a whole here; write (x).a = (y).a AND (x).b = (y).b")
    literal = any(isinstance(side, exp.Literal) and side.is_string for side in (node.this, other))
    if "text" in kinds and kinds & set(NUMBERS) and not literal:
        raise SqlError("a text is compared with a number, which PostgreSQL refuses; CAST one side to the other's type")
    return of_kind(node, "bool")


def _path(node: exp.Expr) -> str:
    parts: list[str] = []
    for part in node.expression.expressions if isinstance(node.expression, exp.JSONPath) else [None]:
        if isinstance(part, exp.JSONPathRoot):
            continue
        if (
            isinstance(part, exp.JSONPathKey)
            and isinstance(part.this, str)
            and "'" not in part.this
            and "\\" not in part.this
        ):
            parts.append(f"[''{part.this}'']")
        elif isinstance(part, exp.JSONPathSubscript) and isinstance(part.this, int) and part.this >= 0:
            parts.append(f"[{part.this}]")
        else:
            raise refused("this path into a JSON value", "write j -> 'field' or j -> 0, one step at a time")
    return "".join(parts)


def _json(node: exp.Expr) -> exp.Expr:
    """`j -> 'a'` is JSON again, with JSON's null; `j ->> 'a'` its text, with NULL."""
    if not isinstance(node.expression, exp.JSONPath):
        raise refused("a computed path into a JSON value", "write the field as a literal: j -> 'field'")
    path = _path(node).replace("''", "\\'")
    value = f"TRY_VARIANT_GET(TRY_PARSE_JSON(_0), '${path}', 'variant')"
    if isinstance(node, exp.JSONExtractScalar):
        return of_kind(spark_of(f"GET_JSON_OBJECT(_0, '${path}')", node.this), "text")
    return of_kind(spark_of(f"TO_JSON({value})", node.this), "json")


def _zone(node: exp.Expr) -> exp.Expr:
    source, zone = node.this, node.args["zone"]
    local = "CAST(_0 AS TIMESTAMP_NTZ)"  # the session's zone is UTC
    if kind(source) == "timestamptz":
        shifted = spark_of(f"CAST(CONVERT_TIMEZONE('UTC', _1, {local}) AS TIMESTAMP)", source, zone)
        return of_kind(shifted, "timestamp")
    if kind(source) == "timestamp":
        shifted = spark_of(f"CAST(CONVERT_TIMEZONE(_1, 'UTC', {local}) AS TIMESTAMP)", source, zone)
        return of_kind(shifted, "timestamptz")
    raise SqlError("AT TIME ZONE of a value of unknown type; CAST it to TIMESTAMP or TIMESTAMPTZ first")


def _substring(node: exp.Expr) -> exp.Expr:
    start, length = node.args.get("start"), node.args.get("length")
    if start is None:
        raise refused("substring without a position", "write substring(x from 1 for 3)")
    if kind(start) == "text":
        raise refused("substring by a pattern", "write regexp_match(x, pattern), or regexp_substr")
    return sub_text(node.this, start, length)


def _time_trunc(node: exp.Expr) -> exp.Expr:
    return truncated_time(node.args["unit"].name, node.this)


def _refusing(what: str, instead: str) -> Callable[[exp.Expr], exp.Expr]:
    def rule(_: exp.Expr) -> exp.Expr:
        raise refused(what, instead)

    return rule


def _typed(found: str | None) -> Callable[[exp.Expr], exp.Expr]:
    return lambda node: of_kind(node, found)


def _common(node: exp.Expr) -> exp.Expr:
    """The kind of all that are not NULL."""
    given = [node.this, *node.expressions] if isinstance(node, exp.Coalesce) else [node.this]
    kinds = {kind(each) for each in given if not isinstance(each, exp.Null)}
    return of_kind(node, kinds.pop() if len(kinds) == 1 else None)


def _case(node: exp.Expr) -> exp.Expr:
    results = [branch.args["true"] for branch in node.args.get("ifs", [])] + [node.args.get("default") or exp.Null()]
    kinds = {kind(each) for each in results if not isinstance(each, exp.Null)}
    wide = kinds.pop() if len(kinds) == 1 else None
    return of_kind(node, wide)


def _whole(node: exp.Expr) -> exp.Expr:
    """ceil and floor: of a double a double, which Spark makes a BIGINT."""
    name = "CEIL" if isinstance(node, exp.Ceil) else "FLOOR"
    if kind(node.this) == "float":
        return of_kind(spark_of(f"IF(ABS(_0) < 9e15, CAST({name}(_0) AS DOUBLE), _0)", node.this), "float")
    if kind(node.this) == "int":
        return of_kind(spark_of("CAST(_0 AS DOUBLE)", node.this), "float")
    return of_kind(node, kind(node.this))


def _named(node: exp.Expr) -> exp.Expr:
    return call(node.name.upper(), list(node.expressions))


def _count(node: exp.Expr) -> exp.Expr:
    return of_kind(node, "int")


def _avg(node: exp.Expr) -> exp.Expr:
    return of_kind(node, "numeric" if kind(node.this) == "numeric" else "float")


_RULES: Final[dict[type[exp.Expr], Callable[[Any], exp.Expr]]] = {
    exp.Literal: _literal,
    exp.Boolean: _literal,
    exp.Paren: _same,
    exp.Neg: _same,
    exp.Abs: _same,
    exp.Alias: _same,
    exp.Filter: filtered,
    exp.Window: _same,
    exp.Min: _same,
    exp.Max: _same,
    exp.Sum: _same,
    exp.Count: _count,
    exp.Avg: _avg,
    exp.RowNumber: _count,
    exp.Add: _sum,
    exp.Sub: _sum,
    exp.Mul: _sum,
    exp.Div: _div,
    exp.Mod: _mod,
    exp.DPipe: _pipe,
    exp.Cast: _cast,
    exp.Extract: _extract,
    exp.Bracket: _bracket,
    exp.Dot: nested_values.field,
    exp.ToMap: nested_values.map_literal,
    exp.EQ: _compared,
    exp.NEQ: _compared,
    exp.LT: _compared,
    exp.LTE: _compared,
    exp.GT: _compared,
    exp.GTE: _compared,
    exp.JSONExtract: _json,
    exp.JSONExtractScalar: _json,
    exp.AtTimeZone: _zone,
    exp.Substring: _substring,
    exp.TimestampTrunc: _time_trunc,
    exp.DateTrunc: _time_trunc,
    exp.Interval: _typed("interval"),
    exp.Array: _typed("array"),
    exp.Lower: _typed("text"),
    exp.Upper: _typed("text"),
    exp.Trim: _typed("text"),
    exp.Overlay: _typed("text"),
    exp.Pi: _typed("float"),
    exp.Replace: _typed("text"),
    exp.StartsWith: _typed("bool"),
    exp.ByteLength: _typed("int"),
    exp.BitwiseAnd: _typed("int"),
    exp.BitwiseOr: _typed("int"),
    exp.BitwiseXor: _typed("int"),
    exp.BitwiseNot: _typed("int"),
    exp.BitwiseLeftShift: _typed("int"),
    exp.BitwiseRightShift: _typed("int"),
    exp.GroupConcat: _typed("text"),
    exp.Length: _typed("int"),
    exp.StrPosition: _typed("int"),
    exp.BitLength: _typed("int"),
    exp.Coalesce: _common,
    exp.Nullif: _common,
    exp.Case: _case,
    exp.Ceil: _whole,
    exp.Floor: _whole,
    exp.ArrayAgg: array_agg,
    exp.JSONArrayAgg: lambda node: json_functions.aggregated(node, array_agg),
    exp.JSONBObjectAgg: json_functions.aggregated_object,
    exp.UnixToTime: lambda node: call("TO_TIMESTAMP", [node.this]),
    exp.StrToTime: parsed_time,
    exp.WithinGroup: within_group,
    exp.PercentileDisc: lambda _: call("PERCENTILE_DISC", []),
    exp.Pow: lambda node: call("POWER", [node.this, node.expression]),
    exp.RegexpLike: _typed("bool"),
    exp.RegexpILike: lambda node: of_kind(spark_of("_0 RLIKE CONCAT('(?i)', _1)", node.this, node.expression), "bool"),
    exp.AnyValue: lambda _: call("ANY_VALUE", []),
    exp.Mode: lambda _: call("MODE", []),
    exp.CurrentUser: lambda _: call("CURRENT_USER", []),
    exp.SessionUser: lambda _: call("SESSION_USER", []),
    exp.CurrentVersion: lambda _: call("VERSION", []),
    exp.CurrentDatabase: lambda _: call("CURRENT_DATABASE", []),
    exp.CurrentSchema: lambda _: call("CURRENT_SCHEMA", []),
    exp.Time: lambda _: call("TIME", []),
    exp.MakeInterval: lambda _: call("MAKE_INTERVAL", []),
    exp.TimestampFromParts: lambda _: call("MAKE_TIMESTAMP", []),
    exp.DateFromParts: lambda _: call("MAKE_DATE", []),
    exp.Anonymous: _named,
    exp.Initcap: _refusing("initcap", "Spark begins words after spaces only; compute it in the producer"),
    exp.Chr: _refusing("chr", "Spark's ends at 255; write the character itself"),
    exp.SimilarTo: _refusing("SIMILAR TO", "write x ~ '^(?:pattern)$'"),
    exp.JSONBExtract: _refusing("#>", "write j -> 'a' -> 'b'"),
    exp.JSONBExtractScalar: _refusing("#>>", "write j -> 'a' ->> 'b'"),
    exp.JSONBContainsTopKey: _refusing("?", "write j -> 'key' IS NOT NULL"),
    exp.ArrayContainsAll: _refusing("@>", "write x = ANY(array) for each element, or compare fields of the JSON value"),
    exp.Parameter: _refusing("@", "write abs(x)"),
    exp.Explode: _refusing("unnest() within an expression", "write FROM t, unnest(t.a) AS u(x)"),
    exp.Decode: _refusing("decode", "send bytes as ENCODE BYTES, or base64 in a BYTEA column"),
    exp.DecodeCase: _refusing("decode", "write CASE"),
}
