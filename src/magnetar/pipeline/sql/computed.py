"""Which rows an expression fails for: a condition beside its Spark SQL.

What PostgreSQL refuses for one row is NULL here (`postgres.py`), as in RisingWave, and a NULL alone does not say whether it was an error.
An expression of nothing but operators and functions that give NULL of NULL only has failed where it is NULL and nothing in it was; within
CASE, coalesce, AND and OR what is not looked at does not fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from magnetar.pipeline.sql.python_functions import CALLED, ERROR
from magnetar.pipeline.sql.typed import kind, kind_of, spark_of

_INFO: Final = "failures"
_FALLIBLE: Final = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Pow, exp.StrToTime, exp.UnixToTime)
_STRICT: Final = (
    exp.Paren,
    exp.Neg,
    exp.Abs,
    exp.LT,
    exp.LTE,
    exp.GT,
    exp.GTE,
    exp.Not,
    exp.Length,
    exp.Lower,
    exp.Upper,
    exp.DPipe,
)
_FUNCTIONS: Final = [
    "DIV",
    "EXP",
    "LN",
    "LOG",
    "LOG10",
    "MOD",
    "POW",
    "POWER",
    "SQRT",
    "SPLIT_PART",
    "SUBSTR",
    "TO_DATE",
    "TO_TIMESTAMP",
]
_TO: Final = ("int", "numeric", "float", "bool", "date", "timestamp", "timestamptz")
_WIDE: Final = ("BIGINT", "DECIMAL", "DOUBLE")


class Computed(str):
    """Spark SQL of an expression. `fails`: Spark SQL of whether PostgreSQL would refuse it for the row, empty where it never does;
    `written`: the expression as people know it."""

    fails: str = ""
    written: str = ""

    @classmethod
    def of(cls, sql: str, fails: str, written: str) -> Computed:
        found = cls(sql)
        found.fails, found.written = fails, written
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return Computed.of, (str(self), self.fails, self.written)


def fails(sql: str) -> str:
    """Whether the expression fails, in Spark SQL; empty where it never does."""
    return sql.fails if isinstance(sql, Computed) else ""


def written(sql: str) -> str:
    """The expression for people."""
    return (sql.written if isinstance(sql, Computed) else "") or str(sql)


def where(condition: str | None, sql: str) -> str:
    """`CASE WHEN condition THEN sql END`, which fails where one of both does."""
    if condition is None:
        return sql
    text = f"CASE WHEN {condition} THEN ({sql}) END"
    bad = [f"({fails(condition)})"] if fails(condition) else []
    bad += [f"(({condition}) AND ({fails(sql)}))"] if fails(sql) else []
    return Computed.of(text, " OR ".join(bad), f"{written(sql)} FILTER (WHERE {written(condition)})") if bad else text


@dataclass(frozen=True, slots=True)
class _Info:
    """`leaves`: what has to be there for the value to be; `fallible`: whether it may be NULL all the same; `others`: conditions of what
    lies deeper and says for itself whether it fails."""

    leaves: tuple[exp.Expr, ...] = ()
    fallible: bool = False
    others: tuple[exp.Expr, ...] = ()

    def __deepcopy__(self, memo: object) -> _Info:
        """It names the node that it is noted at, which is copied with it."""
        return self


def below(node: exp.Expr) -> dict[str, list[exp.Expr]]:
    """The children of a node, by the name of its argument."""
    found: dict[str, list[exp.Expr]] = {}
    for name, value in node.args.items():
        values = value if isinstance(value, list) else [value]
        children = [each for each in values if isinstance(each, exp.Expr)]
        if children:
            found[name] = children
    return found


def note(node: exp.Expr, found: exp.Expr, children: dict[str, list[exp.Expr]], spelled: str | None) -> None:
    """Remember of `found`, which a rule made of `node`, where it fails. `children`: what `below(node)` was before; `spelled`: the kind
    that a cast comes from."""
    found.meta[_INFO] = _info(node, found, children, spelled)


def condition(root: exp.Expr) -> exp.Expr | None:
    """Whether the value that the noted expression has is an error's."""
    return _any(_closed(root))


def _info(node: exp.Expr, found: exp.Expr, children: dict[str, list[exp.Expr]], spelled: str | None) -> _Info:
    if isinstance(node, exp.Column | exp.Null):
        return _Info((found,))
    if isinstance(node, exp.Literal | exp.Boolean | exp.DataType | exp.Identifier | exp.Var | exp.Interval):
        return _Info()
    values = [each for group in children.values() for each in group]
    if _is_strict(node):
        infos = [each.meta[_INFO] for each in values if _INFO in each.meta]
        return _Info(
            _unique(leaf for each in infos for leaf in each.leaves),
            any(each.fallible for each in infos) or _is_fallible(node, spelled),
            tuple(other for each in infos for other in each.others),
        )
    others = tuple(_guarded(node, children))
    if isinstance(found, exp.Dot) and isinstance(found.this, exp.Anonymous) and found.this.name.startswith(CALLED):
        raised = exp.Dot(this=found.this.copy(), expression=exp.to_identifier(ERROR))
        others = (*others, exp.Not(this=exp.Is(this=raised, expression=exp.Null())))
    return _Info((found,), False, others)


def _is_strict(node: exp.Expr) -> bool:
    if isinstance(node, exp.EQ | exp.NEQ):
        return isinstance(
            node.expression, exp.Column | exp.Literal | exp.Binary | exp.Cast | exp.Paren | exp.Func
        ) and not isinstance(node.expression, exp.Anonymous)
    if isinstance(node, exp.Cast):
        return kind_of(node.args["to"]) in _TO
    if isinstance(node, exp.Anonymous):
        return node.name.upper() in _FUNCTIONS
    return isinstance(node, (*_STRICT, *_FALLIBLE))


def _is_fallible(node: exp.Expr, source: str | None) -> bool:
    if isinstance(node, exp.Cast):
        to = node.args["to"]
        name = str(getattr(to.this, "value", to.this)).upper()
        widened = source == "int" and name in _WIDE and not to.expressions
        between = source in ("date", "timestamp", "timestamptz") and kind_of(to) in ("date", "timestamp", "timestamptz")
        return not (widened or between)
    if isinstance(node, exp.Anonymous):
        return True
    return isinstance(node, _FALLIBLE)


def _closed(node: exp.Expr) -> list[exp.Expr]:
    """All conditions of what is noted of a node."""
    info: _Info | None = node.meta.get(_INFO)
    if info is None:
        return []
    found = list(info.others)
    if info.fallible:
        there = "".join(f" AND NOT _{place} IS NULL" for place in range(1, len(info.leaves) + 1))
        if len(info.leaves) < 9:
            found.append(spark_of(f"(_0 IS NULL{there})", node, *info.leaves))
        else:
            each = exp.and_(*(exp.Not(this=exp.Is(this=leaf.copy(), expression=exp.Null())) for leaf in info.leaves))
            found.append(exp.and_(exp.Is(this=exp.Paren(this=node.copy()), expression=exp.Null()), each))
    return found


def _guarded(node: exp.Expr, children: dict[str, list[exp.Expr]]) -> Iterable[exp.Expr]:
    """The conditions of what is below, so far as it is looked at."""
    if isinstance(node, exp.Case) and node.args.get("this") is None:
        before: list[exp.Expr] = []
        for branch in children.get("ifs", []):
            test, value = branch.this, branch.args["true"]
            yield from _unless(before, _closed(test))
            if (bad := _any(_closed(value))) is not None:
                yield from _unless(before, [spark_of("(_0 AND _1)", test, bad)])
            before.append(test)
        for default in children.get("default", []):
            yield from _unless(before, _closed(default))
    elif isinstance(node, exp.Coalesce):
        seen: list[exp.Expr] = []
        for value in [*children.get("this", []), *children.get("expressions", [])]:
            bad = _any(_closed(value))
            if bad is not None:
                yield exp.and_(*(spark_of("_0 IS NULL", each) for each in seen), bad.copy())
            seen.append(value)
    elif isinstance(node, exp.And | exp.Or):
        left, right = node.this, node.expression
        yield from _closed(left)
        if (bad := _any(_closed(right))) is not None:
            decided = "FALSE" if isinstance(node, exp.And) else "TRUE"
            yield spark_of(
                f"(COALESCE(_0, {'TRUE' if decided == 'FALSE' else 'FALSE'}) <> {decided} AND _1)", left, bad
            )
    elif not isinstance(node, exp.If):
        for group in children.values():
            for each in group:
                yield from _closed(each)


def _unless(before: list[exp.Expr], bad: list[exp.Expr]) -> Iterable[exp.Expr]:
    for each in bad:
        yield exp.and_(*(spark_of("NOT COALESCE(_0, FALSE)", test) for test in before), each.copy())


def _any(bad: list[exp.Expr]) -> exp.Expr | None:
    return exp.or_(*(each.copy() for each in bad)) if bad else None


def _unique(nodes: Iterable[exp.Expr]) -> tuple[exp.Expr, ...]:
    return tuple({each.sql(): each for each in nodes}.values())


def source_kind(node: exp.Expr) -> str | None:
    """That of what a cast takes; to be asked before the cast is translated."""
    return kind(node.this) if isinstance(node, exp.Cast) else None
