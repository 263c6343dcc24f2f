"""What PostgreSQL's functions, operators and casts are in DuckDB, where it lacks them or means something else. A decision core.

`tests/integration/serving/test_served_conformance.py` holds each beside a real PostgreSQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Final

from sqlglot import exp

from magnetar.pipeline.serving.sql.interval_literals import interval_parts
from magnetar.pipeline.serving.sql.postgres_macros import INNER, MACROS, SCHEMA
from magnetar.pipeline.serving.sql.result_names import Node


def called(name: str, *arguments: Node) -> Node:
    """A call of a macro."""
    call = exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])
    return exp.Dot(this=exp.to_identifier(SCHEMA), expression=call)


def rewritten(node: Node) -> Node:
    """What DuckDB is asked in place of a node; the node itself where nothing differs."""
    if isinstance(node, exp.Cast):
        return _cast(node)
    if isinstance(node, exp.Anonymous) and not isinstance(node.parent, exp.Dot):
        return _function(node.name.lower(), list(node.expressions)) or node
    rule = _RULES.get(type(node).__name__)
    return node if rule is None else rule(node) or node


def _function(name: str, arguments: list[Node]) -> Node | None:
    if name == "bit_length" and len(arguments) == 1:
        return exp.Mul(this=exp.Literal.number(8), expression=called("octet_length", arguments[0]))
    if name == "convert_from" and arguments and _is_literal(arguments[0]):
        return called(name, bytes_literal(arguments[0].name), *arguments[1:])
    if name == "regexp_match":
        return _regexp_match(*arguments)
    if name == "bit_count" and len(arguments) == 1 and is_bytes(arguments[0]):
        return called("bit_count_of_bytes", arguments[0])
    if name in ("encode", "decode") and len(arguments) == 2:
        return coded(name, *arguments)
    return called(name, *arguments) if name in MACROS and name not in INNER else None


def _is_literal(node: Node) -> bool:
    return isinstance(node, exp.Literal) and bool(node.is_string)


def _regexp_match(text: Node, pattern: Node, flags: Node | None = None) -> Node | None:
    """What the groups of a literal pattern match, or what all of it does."""
    if isinstance(pattern, exp.Null) or isinstance(flags, exp.Null):
        return exp.Cast(this=exp.Null(), to=exp.DataType.build("TEXT[]", dialect="postgres"))
    if not _is_literal(pattern) or (flags is not None and not _is_literal(flags)):
        return None
    try:
        groups = re.compile(pattern.name).groups
    except re.error:
        return None
    case = [sign for sign in (flags.name if flags is not None else "") if sign in "ic"]
    options = [exp.Literal.string("i" if case and case[-1] == "i" else "c")]
    found = [
        exp.Anonymous(
            this="regexp_extract", expressions=[text.copy(), pattern.copy(), exp.Literal.number(group), *options]
        )
        for group in (range(1, groups + 1) if groups else (0,))
    ]
    matches = exp.Anonymous(this="regexp_matches", expressions=[text.copy(), pattern.copy(), *options])
    return exp.Case(ifs=[exp.If(this=matches, true=exp.Array(expressions=found))])


def coded(name: str, value: Node, form: Node) -> Node | None:
    """encode and decode with a literal form."""
    said = form.name.lower() if isinstance(form, exp.Literal) else ""
    text = isinstance(value, exp.Literal) and value.is_string
    if name == "encode":
        given = bytes_literal(value.name) if text else value
        if said == "escape" and (text or is_bytes(value)):
            data = _bytes_of(given)
            return None if data is None else exp.Literal.string(_escaped(data))
        if said == "hex":
            return exp.Lower(this=exp.Anonymous(this="hex", expressions=[given]))
        return exp.Anonymous(this="to_base64", expressions=[given]) if said == "base64" else None
    if said == "hex":
        return exp.Anonymous(this="unhex", expressions=[value.copy()])
    if said == "escape" and text:
        return _unescaped(value.name)
    return exp.Anonymous(this="from_base64", expressions=[value.copy()]) if said == "base64" else None


def is_bytes(node: Node) -> bool:
    """Whether a node is known to be a BYTEA."""
    node = node.unnest()
    if isinstance(node, exp.Cast):
        return bool(node.args["to"].this in (exp.DType.VARBINARY, exp.DType.BLOB, exp.DType.BINARY))
    return isinstance(node, exp.Dot) and node.expression.name in ("bytea_of", "set_bit", "set_byte", "convert_to")


def bytes_literal(text: str) -> Node:
    """A literal of BYTEA, by PostgreSQL's rules: `\\x` and hexadecimal digits, or a text with `\\ooo`."""
    if text.startswith("\\x"):
        digits = re.sub(r"\s", "", text[2:])
        if re.fullmatch(r"([0-9a-fA-F]{2})*", digits):
            return _blob(bytes.fromhex(digits))
        return called("bytea_of", exp.Literal.string(text))
    return _unescaped(text)


def _bytes_of(node: Node) -> bytes | None:
    """Of a literal as `bytes_literal` has written it."""
    while isinstance(node, exp.Cast | exp.Paren):
        node = node.this
    if isinstance(node, exp.Anonymous) and node.name == "unhex" and _is_literal(node.expressions[0]):
        return bytes.fromhex(node.expressions[0].name)
    return None


def _escaped(data: bytes) -> str:
    """As encode(..., 'escape') does."""
    return "".join(
        "\\\\" if each == 0x5C else f"\\{each:03o}" if each == 0 or each >= 0x80 else chr(each) for each in data
    )


def _unescaped(text: str) -> Node:
    raw = text.encode()
    found = re.sub(rb"\\([0-3][0-7]{2}|\\)", lambda part: b"\\" if part[1] == b"\\" else bytes([int(part[1], 8)]), raw)
    return _blob(found)


def _blob(data: bytes) -> Node:
    return exp.Anonymous(this="unhex", expressions=[exp.Literal.string(data.hex())])


def _cast(node: Node) -> Node:
    kind, value = node.args["to"], node.this
    if kind.this in (exp.DType.VARBINARY, exp.DType.BLOB, exp.DType.BINARY):
        if isinstance(value, exp.Literal) and value.is_string:
            return exp.Cast(this=bytes_literal(value.name), to=exp.DataType.build("BLOB", dialect="duckdb"))
        return node
    if kind.this == exp.DType.DECIMAL and not kind.expressions:
        return _numeric(node, value)
    if kind.this == exp.DType.ARRAY and isinstance(value, exp.Literal) and value.is_string:
        node = _array_literal(node, value.name)
        value = node.this
    if kind.this in _TEXTS and is_bytes(value):
        return called("hex_of", value)
    if kind.this in _TEXTS and dimensions(value) == 1:
        return called("array_text", value)
    if kind.this in _TEXTS and not kind.expressions and not is_text(value):
        return called("cast_text", value)
    if kind.this == exp.DType.BOOLEAN:
        return _boolean(node, value)
    if kind.this == exp.DType.INTERVAL:
        if _is_literal(value):
            return _interval(value.name, "") or node
        return called("interval_of_time", value) if _is_of(value, exp.DType.TIME) else node
    if kind.this == exp.DType.TIME and _is_interval(value):
        return called("time_of_interval", value)
    if kind.this == exp.DType.TIMESTAMPTZ and isinstance(value, exp.Literal) and value.is_string:
        spelled = re.sub(r"\s+([+-]\d\d(:?\d\d)?)$", r"\1", value.name)
        return node if spelled == value.name else exp.Cast(this=exp.Literal.string(spelled), to=kind.copy())
    if any(each.this == exp.DType.DECIMAL and not each.expressions for each in kind.find_all(exp.DataType)):
        wide = kind.copy()
        for each in wide.find_all(exp.DataType):
            if each.this == exp.DType.DECIMAL and not each.expressions:
                each.set("expressions", _decimal(DIGITS, SCALE).expressions)
        return exp.Cast(this=value.copy(), to=wide)
    return node


_TEXTS: Final = (exp.DType.TEXT, exp.DType.VARCHAR)


def is_text(node: Node) -> bool:
    """Whether a node is known to be a text, or NULL."""
    node = node.unnest()
    if isinstance(node, exp.Cast):
        return node.args["to"].this in _TEXTS
    return (
        isinstance(
            node, exp.Null | exp.Parameter | exp.Placeholder | exp.Lower | exp.Upper | exp.Substring | exp.Concat
        )
        or (isinstance(node, exp.Literal) and node.is_string)
        or isinstance(node, exp.DPipe | exp.Trim | exp.Replace)
    )


def _boolean(node: Node, value: Node) -> Node:
    """From a text with spaces around it, and by PostgreSQL's words."""
    if isinstance(value, exp.Literal) and value.is_string:
        word = value.name.strip().lower()
        for found, names in ((exp.true(), ("true", "yes", "on", "1")), (exp.false(), ("false", "no", "off", "0"))):
            if word and any(name.startswith(word) and (word != "o") for name in names):
                return exp.Cast(this=found, to=node.args["to"].copy())
        return node
    if is_text(value) and not isinstance(value, exp.Null | exp.Parameter | exp.Placeholder):
        return exp.Cast(this=exp.Trim(this=value.copy()), to=node.args["to"].copy())
    return node


def _array_literal(node: Node, text: str) -> Node:
    """`'{1,2}'::INT[]` as a list of texts that are cast. An array that is written wrong is left to DuckDB, which refuses it."""
    found = _elements(text.strip())
    if found is None:
        return node
    wanted, deep = node.args["to"].copy(), dimensions(found)
    for _ in range(deep - dimensions(exp.Cast(this=found, to=wanted))):
        wanted = exp.DataType(this=exp.DType.ARRAY, expressions=[wanted], nested=True)
    return exp.Cast(this=found, to=wanted)


def _elements(text: str) -> Node | None:
    at = 0

    def spaces() -> None:
        nonlocal at
        while at < len(text) and text[at].isspace():
            at += 1

    def array() -> Node | None:
        nonlocal at
        at += 1
        items: list[Node] = []
        spaces()
        if at < len(text) and text[at] == "}":
            at += 1
            return exp.Array(expressions=[])
        while at < len(text):
            spaces()
            item = array() if text[at : at + 1] == "{" else element()
            if item is None:
                return None
            items.append(item)
            spaces()
            if text[at : at + 1] == "}":
                at += 1
                return exp.Array(expressions=items)
            if text[at : at + 1] != ",":
                return None
            at += 1
        return None

    def element() -> Node | None:
        nonlocal at
        word, quoted = "", text[at : at + 1] == '"'
        if quoted:
            at += 1
            while at < len(text) and text[at] != '"':
                at += text[at] == "\\"
                word += text[at : at + 1]
                at += 1
            at += 1
            return exp.Literal.string(word)
        while at < len(text) and text[at] not in ",{}":
            at += text[at] == "\\"
            word += text[at : at + 1]
            at += 1
        word = word.rstrip()
        if not word:
            return None
        return exp.Null() if word.lower() == "null" else exp.Literal.string(word)

    if not text.startswith("{"):
        return None
    found = array()
    return found if at == len(text) else None


def _with_each(node: Node) -> Node | None:
    """A comparison with ANY or ALL of an array, of which an element may be NULL."""
    other = node.expression
    if not isinstance(other, exp.Any | exp.All) or other.find(exp.Query) is not None:
        return None
    values = other.this.unnest()
    compared = node.copy()
    compared.set("expression", exp.column("_each"))
    test = exp.Lambda(this=compared, expressions=[exp.to_identifier("_each")])
    found = exp.Anonymous(this="list_transform", expressions=[values.copy(), test])
    return called("any_true" if isinstance(other, exp.Any) else "all_true", found)


def _is_of(node: Node, kind: object) -> bool:
    node = node.unnest()
    return isinstance(node, exp.Cast) and node.args["to"].this == kind


def _is_interval(node: Node) -> bool:
    """Whether a node is known to be an INTERVAL."""
    node = node.unnest()
    if isinstance(node, exp.Dot):
        return node.expression.name in ("interval_times", "interval_over", "time_difference", "interval_of_time")
    return isinstance(node, exp.Interval) or _is_of(node, exp.DType.INTERVAL)


def _scaled(node: Node) -> Node | None:
    """An interval times or over a number, which need not be a whole one."""
    if _is_interval(node.this):
        name = "interval_times" if isinstance(node, exp.Mul) else "interval_over"
        return called(name, node.this, node.expression)
    if isinstance(node, exp.Mul) and _is_interval(node.expression):
        return called("interval_times", node.expression, node.this)
    return None


def _time_difference(node: Node) -> Node | None:
    both = _is_of(node.this, exp.DType.TIME) and _is_of(node.expression, exp.DType.TIME)
    return called("time_difference", node.this, node.expression) if both else None


def _rounded(node: Node) -> Node | None:
    """To the even one of two that are as near, of a DOUBLE."""
    if node.args.get("decimals") is not None or not _is_of(node.this, exp.DType.DOUBLE):
        return None
    return exp.Anonymous(this="round_even", expressions=[node.this.copy(), exp.Literal.number(0)])


def _interval_literal(node: Node) -> Node | None:
    if not _is_literal(node.this):
        return None
    unit = node.args.get("unit")
    if unit is not None and not isinstance(unit, exp.Var):
        return None
    return _interval(node.this.name, unit.name if unit is not None else "")


def _interval(text: str, unit: str) -> Node | None:
    """A literal by PostgreSQL's words, in DuckDB's; None for what is read by neither."""
    parts = interval_parts(f"{text} {unit}" if unit and re.fullmatch(r"\s*[+-]?[\d.]+\s*", text) else text)
    if parts is None:
        return None
    months, days, micros = parts
    spelled = exp.Literal.string(f"{months} months {days} days {micros} microseconds")
    return exp.Cast(this=spelled, to=exp.DataType.build("INTERVAL", dialect="duckdb"))


def _like(node: Node) -> Node | None:
    """A backslash in a pattern takes the next sign as it is, where no ESCAPE says otherwise."""
    if isinstance(node.parent, exp.Escape):
        return None
    if isinstance(node.expression, exp.Any | exp.All):
        return _with_each(node)
    pattern = node.expression
    if isinstance(pattern, exp.Any | exp.All) or (isinstance(pattern, exp.Literal) and "\\" not in pattern.name):
        return None
    return exp.Escape(this=node.copy(), expression=exp.Literal.string("\\"))


def dimensions(node: Node) -> int:
    """How deep the lists of a node are, as far as it says so; 0: no list, or unknown."""
    node = node.unnest()
    if isinstance(node, exp.Array):
        return 1 + max((dimensions(each) for each in node.expressions), default=0)
    if isinstance(node, exp.Cast):
        kind, found = node.args["to"], 0
        while kind.this == exp.DType.ARRAY:
            found += 1
            kind = kind.expressions[0] if kind.expressions else exp.DataType.build("TEXT")
        return found
    return 0


def _joined(node: Node) -> Node | None:
    """`||` of an array and an element of it."""
    left, right = dimensions(node.this), dimensions(node.expression)
    if left == right + 1 and (right or not isinstance(node.expression.unnest(), exp.Column | exp.Null)):
        return exp.Anonymous(this="list_append", expressions=[node.this.copy(), node.expression.copy()])
    if right == left + 1 and (left or not isinstance(node.this.unnest(), exp.Column | exp.Null)):
        return exp.Anonymous(this="list_prepend", expressions=[node.this.copy(), node.expression.copy()])
    return None


def _joined_texts(node: Node) -> Node | None:
    """concat and concat_ws of values that are not text."""
    if all(is_text(each) for each in node.expressions):
        return None
    found = node.copy()
    found.set("expressions", [each if is_text(each) else called("text_of", each) for each in found.expressions])
    return found


def _element(node: Node) -> Node | None:
    """An index below 1 is of no element; DuckDB would count from the end. sqlglot has made it count from 0."""
    (index, *others) = node.expressions
    if others or isinstance(index, exp.Slice):
        return None
    bare = index.unnest()
    below = isinstance(bare, exp.Neg) and isinstance(bare.this, exp.Literal)
    if not below or node.args.get("safe"):
        return None
    return exp.Null()


def _number(node: Node) -> Node | None:
    """`1e-6` is a NUMERIC in PostgreSQL; DuckDB would make it a DOUBLE."""
    if node.is_string or "e" not in node.name.lower() or not re.fullmatch(r"[0-9.]+[eE][+-]?[0-9]{1,2}", node.name):
        return None
    text = format(Decimal(node.name), "f")
    if len(text.replace(".", "").lstrip("0")) > DIGITS or len(text.partition(".")[2]) > DIGITS:
        return None
    return exp.Literal.number(text)


def _matched(node: Node) -> Node | None:
    """A UUID is matched as its text."""
    if type(node.this).__name__ != "Uuid":
        return None
    found = node.copy()
    found.set("this", exp.Cast(this=node.this.copy(), to=exp.DataType.build("TEXT")))
    return found


def _first_of_all(name: str, node: Node) -> Node | None:
    """first_value and last_value as aggregates."""
    if isinstance(node.parent, exp.Window | exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
        return None
    return exp.Anonymous(this=name, expressions=[node.this.copy()])


def _joined_arrays(node: Node) -> Node | None:
    """array_cat, of which one may be an element of the other."""
    if len(node.expressions) != 1:
        return None
    return _joined(exp.DPipe(this=node.this.copy(), expression=node.expressions[0].copy()))


def _numeric(node: Node, value: Node) -> Node:
    """NUMERIC without digits: of a literal the digits that it has, of everything else as many as there is room for."""
    bare = value.unnest()
    negative = isinstance(bare, exp.Neg)
    bare = bare.this if negative else bare
    if isinstance(bare, exp.Literal):
        try:
            number = Decimal(bare.name.strip())
        except InvalidOperation:
            number = Decimal("NaN")
        if number.is_finite():
            text = format(number, "f")
            scale = len(text.partition(".")[2])
            if scale <= DIGITS and len(text.strip("-").replace(".", "")) <= DIGITS:
                return exp.Cast(this=exp.Literal.string(("-" if negative else "") + text), to=_decimal(DIGITS, scale))
    return exp.Cast(this=value.copy(), to=_decimal(DIGITS, SCALE))


def _decimal(digits: int, scale: int) -> Node:
    return exp.DataType.build(f"DECIMAL({digits}, {scale})", dialect="duckdb")


DIGITS: Final = 38
SCALE: Final = 10

_RULES: Final[dict[str, Callable[[Node], Node | None]]] = {
    "Encode": lambda node: coded("encode", node.this, node.args.get("charset") or exp.Null()),
    "Decode": lambda node: coded("decode", node.this, node.args.get("charset") or exp.Null()),
    "Getbit": lambda node: called("get_bit", node.this, node.expression),
    "Like": _like,
    "ILike": _like,
    "DPipe": _joined,
    "ByteLength": lambda node: called("octet_length", node.this),
    "BitLength": lambda node: exp.Mul(this=exp.Literal.number(8), expression=called("octet_length", node.this)),
    "Length": lambda node: called("octet_length", node.this) if is_bytes(node.this) else None,
    "Reverse": lambda node: called("reversed_bytes", node.this) if is_bytes(node.this) else None,
    "Coth": lambda node: called("coth", node.this),
    "Interval": lambda node: _interval_literal(node),
    "Mul": lambda node: _scaled(node),
    "Div": lambda node: _scaled(node),
    "Sub": lambda node: _time_difference(node),
    "Round": lambda node: _rounded(node),
    **dict.fromkeys(("EQ", "NEQ", "GT", "GTE", "LT", "LTE"), lambda node: _with_each(node)),
    "Concat": lambda node: _joined_texts(node),
    "ConcatWs": lambda node: _joined_texts(node),
    "Bracket": lambda node: _element(node),
    "Literal": lambda node: _number(node),
    "RegexpLike": lambda node: _matched(node),
    "FirstValue": lambda node: _first_of_all("first", node),
    "LastValue": lambda node: _first_of_all("last", node),
    "ArrayConcat": lambda node: _joined_arrays(node),
}
