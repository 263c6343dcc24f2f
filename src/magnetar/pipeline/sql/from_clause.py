"""FROM: names, subqueries, TUMBLE and HOP, and joins: any number of inputs, by equality where one is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias

from sqlglot import exp

from magnetar.pipeline.sql.constant_rows import rows_of
from magnetar.pipeline.sql.interval_join import bounds
from magnetar.pipeline.sql.intervals import interval_us
from magnetar.pipeline.sql.plan import (
    Join,
    LateRows,
    Named,
    OneRow,
    Plan,
    Project,
    Scan,
    Unnest,
    Windowed,
    output_kinds,
    output_names,
)
from magnetar.pipeline.sql.scope import ADDED, Columns, Relations, Scope, Side, refuse
from magnetar.pipeline.sql.statements import Query
from magnetar.pipeline.sql.subqueries import terms as terms_of
from magnetar.pipeline.sql.table_functions import TableFunction, elements, table_function

_TABLE_FUNCTIONS: Final = {
    "SESSION": "write GROUP BY k, SESSION(ts, size) with SESSION_START(ts, size) and SESSION_END(ts, size)",
}
"""What to write instead of those that people know."""

_NO_INPUT: Final = f"{ADDED}_no_input"
"""The alias of the one row that a SELECT without FROM reads."""

_SIGNS: Final[dict[type[exp.Expr], str]] = {exp.GTE: ">=", exp.GT: ">", exp.LTE: "<=", exp.LT: "<"}


def column_aliases(node: exp.Expr) -> list[str]:
    """Of `AS t (a, b)`, or of a query of WITH."""
    alias = node.args.get("alias")
    return [column.name for column in alias.args.get("columns") or ()] if isinstance(alias, exp.TableAlias) else []


def _column(name: str) -> str:
    return exp.column(exp.to_identifier(name, quoted=not name.isidentifier())).sql("spark")


PlanOf: TypeAlias = Callable[[Query, exp.Expr, Relations, dict[str, Plan]], Plan]


class FromClause:
    """Reads the FROM of one SELECT. `named` are the plans of WITH, `plan_of` plans a subquery."""

    def __init__(self, query: Query, relations: Relations, named: dict[str, Plan], plan_of: PlanOf) -> None:
        self.query = query
        self.relations = relations
        self.named = named
        self.plan_of = plan_of
        self.filters: list[exp.Expr] = []
        """What inner joins ask for beside equalities."""
        self._has_comma = False

    def read(self, tree: exp.Select) -> tuple[Scope, Callable[[], Plan]]:
        """The scope, and a function for the plan: a join's columns are those that were asked of the scope by then.

        What an inner join asks for beside equalities is in `filters` afterwards.
        """
        joins = list(tree.args.get("joins") or [])
        clause = tree.args.get("from_")
        if clause is None and any(isinstance(each, exp.Star) for each in tree.expressions):
            raise refuse(self.query, tree, "SELECT * without FROM; write the columns, or FROM and what has them")
        self._first, swapped = exp.Tuple() if clause is None else clause.this, False
        if table_function(self.query, self._first) is not None and self._is_behind_another(joins):
            self._first, swapped = self._behind_another(joins), True
        sides = [Side(_NO_INPUT, OneRow(), ()) if clause is None else self._side(self._first)]
        where = tree.args.get("where")
        terms = terms_of(where.this) if where is not None else []
        steps = [self._step(sides, join, terms) for join in joins]
        turned = bool(joins) and (joins[0].side or "").lower() == "right"
        written = [sides[1], sides[0], *sides[2:]] if turned or swapped else sides
        return Scope(self.query, written), lambda: _joined(sides, steps)

    def _is_behind_another(self, joins: list[exp.Join]) -> bool:
        """Whether a function that stands first may as well stand behind the input that follows it."""
        return bool(joins) and not joins[0].side and table_function(self.query, joins[0].this) is None

    def _behind_another(self, joins: list[exp.Join]) -> exp.Expr:
        """The function takes the place of the input behind it, which is the first then."""
        first: exp.Expr = joins[0].this
        joins[0] = joins[0].copy()
        joins[0].set("this", self._first.copy())
        return first

    def _alone(self, node: exp.Expr, called: TableFunction) -> Side:
        """A function of constants, which needs no input: its rows are there as long as the view is."""
        columns = (called.column,) if called.ordinality is None else (called.column, called.ordinality)
        array, kind = elements(self.query, Scope(self.query, [Side(_NO_INPUT, OneRow(), ())]), called, node)
        plan = Unnest(Project(OneRow(), ()), array, columns[0], called.ordinality, kind=kind)
        return Side(called.alias, plan, columns, self._kinds(plan))

    def _side(self, node: exp.Expr) -> Side:
        called = table_function(self.query, node)
        if called is not None:
            return self._alone(node, called)
        side = self._unnamed_side(node)
        names = column_aliases(node)
        if not names:
            return side
        plan = self.called(node, side.plan, side.columns, names)
        return Side(side.alias, plan, output_names(plan), self._kinds(plan))

    def called(self, node: exp.Expr, plan: Plan, columns: Sequence[str] | None, names: list[str]) -> Plan:
        """With the names of `AS t (a, b)` for the first of its columns. PlanRefusedError for more names than columns."""
        if columns is None:
            raise refuse(self.query, node, "the columns that it names are not known; name them instead of *, with AS")
        if len(names) > len(columns):
            raise refuse(self.query, node, f"{len(names)} names for {len(columns)} columns; give each column one")
        kinds = self._kinds(plan)
        given = [*names, *columns[len(names) :]]
        outputs = (Named(_column(old), new, kinds.get(old.lower())) for old, new in zip(columns, given, strict=True))
        return Project(plan, tuple(outputs))

    def _unnamed_side(self, node: exp.Expr) -> Side:
        if isinstance(node, exp.Subquery):
            plan = self.plan_of(self.query, node.this, self.relations, self.named)
            return Side(node.alias or "subquery", plan, output_names(plan), self._kinds(plan))
        if isinstance(node, exp.Values):
            plan = self.plan_of(self.query, rows_of(self.query, node), self.relations, self.named)
            return Side(node.alias or "values", plan, output_names(plan), self._kinds(plan))
        if not isinstance(node, exp.Table):
            instead = {
                "lateral": "write the subquery as a JOIN, with row_number() OVER (PARTITION BY ...) for its LIMIT",
            }.get(node.key)
            what = f"{node.key.upper()} has no incremental plan in FROM; {instead}" if instead else ""
            others = "FROM takes sources, views, subqueries, VALUES, TUMBLE, HOP, LATE_ROWS, unnest and generate_series"
            raise refuse(self.query, node, what or others)
        if isinstance(node.this, exp.Anonymous):
            return self._windowed(node)
        if node.args.get("db"):
            raise refuse(self.query, node, "names have no schema or database; remove what stands before the dot")
        return self._relation(node.this, node.alias or node.name)

    def _relation(self, node: exp.Expr, alias: str) -> Side:
        found = self.named.get(node.name.lower())
        if found is not None:
            return Side(alias, found, output_names(found), self._kinds(found))
        for name, columns in self.relations.items():
            if name.lower() == node.name.lower():
                if isinstance(columns, Columns) and columns.plan is not None:
                    return Side(alias, columns.plan, columns, columns.kinds)
                return Side(alias, Scan(name), columns, self._kinds(Scan(name)))
        known = ", ".join(sorted(self.relations)) or "nothing yet"
        raise refuse(
            self.query,
            node,
            f"{node.name} does not exist; CREATE SOURCE or a view of that name first (there is {known})",
        )

    def columns_of(self, node: exp.Expr) -> tuple[str, ...] | None:
        """Those of an input of FROM, where they are known before it is planned."""
        found, names = self._own_columns_of(node), column_aliases(node)
        return found if found is None else (*names, *found[len(names) :])

    def _own_columns_of(self, node: exp.Expr) -> tuple[str, ...] | None:
        if isinstance(node, exp.Subquery):
            inner = node.this
            while isinstance(inner, exp.SetOperation | exp.Subquery):
                inner = inner.this
            if not isinstance(inner, exp.Select) or inner.is_star:
                return None
            return tuple(output.alias_or_name for output in inner.expressions)
        if not isinstance(node, exp.Table) or isinstance(node.this, exp.Anonymous):
            return None
        found = self.named.get(node.name.lower())
        if found is not None:
            return output_names(found)
        return next((columns for name, columns in self.relations.items() if name.lower() == node.name.lower()), None)

    def _kinds(self, plan: Plan) -> dict[str, str | None]:
        def of_relation(name: str) -> Mapping[str, str | None]:
            columns = self.relations.get(name)
            return columns.kinds if isinstance(columns, Columns) else {}

        return output_kinds(plan, of_relation)

    def _windowed(self, node: exp.Table) -> Side:
        call = node.this
        function = call.name.upper()
        if function == "LATE_ROWS":
            return self._late(node)
        if function not in ("TUMBLE", "HOP"):
            instead = _TABLE_FUNCTIONS.get(function, "use TUMBLE(t, ts, size), HOP(t, ts, slide, size) or LATE_ROWS(v)")
            raise refuse(self.query, node, f"{function}() is not a table function here; {instead}")
        arguments = call.expressions
        usage = (
            "TUMBLE(t, ts, INTERVAL '10 minutes')"
            if function == "TUMBLE"
            else "HOP(t, ts, INTERVAL '1 minute', INTERVAL '1 hour')"
        )
        if len(arguments) != (3 if function == "TUMBLE" else 4):
            raise refuse(self.query, node, f"write {usage}")
        source = arguments[0]
        side = (
            self._side(source)
            if isinstance(source, exp.Subquery)
            else self._relation(source, node.alias or source.name)
        )
        lengths = [self._length(argument, usage) for argument in arguments[2:]]
        slide, size = lengths[0], lengths[-1]
        if slide <= 0 or size <= 0 or slide > size:
            raise refuse(
                self.query,
                node,
                f"slide and size are positive, and the slide is not longer than the size; write {usage}",
            )
        scope = Scope(self.query, [side])
        column = scope.sql(scope.resolved(arguments[1]))
        columns = None if side.columns is None else (*side.columns, "window_start", "window_end")
        plan = Windowed(side.plan, column, size, slide)
        return Side(node.alias or side.alias, plan, columns, self._kinds(plan))

    def _late(self, node: exp.Table) -> Side:
        arguments = node.this.expressions
        if len(arguments) != 1 or not isinstance(arguments[0], exp.Column | exp.Identifier):
            raise refuse(self.query, node, "write LATE_ROWS(v) with the name of a view of windows that close")
        found = self._relation(arguments[0], node.alias or "late_rows")
        if not isinstance(found.plan, Scan):
            raise refuse(self.query, node, f"LATE_ROWS takes the name of a view; {arguments[0].name} is a subquery")
        return Side(found.alias, LateRows(found.plan), None)

    def _length(self, node: exp.Expr, usage: str) -> int:
        if not isinstance(node, exp.Interval) or not isinstance(node.this, exp.Literal):
            raise refuse(self.query, node, f"expected an INTERVAL; write {usage}")
        try:
            return interval_us(node.this.name, node.unit.name if node.unit is not None else None)
        except ValueError as error:
            raise refuse(self.query, node, str(error)) from None

    def _step(self, sides: list[Side], join: exp.Join, terms: list[exp.Expr]) -> _Step:
        """One more input, which is among the sides afterwards. `terms`: what WHERE asks for, where equalities of a comma join stand."""
        query, how = self.query, (join.side or "").lower()
        if join.kind in ("SEMI", "ANTI") or join.method not in ("", "NATURAL", "ASOF"):
            instead = "write JOIN, LEFT JOIN or FULL JOIN ... ON a.x = b.x, or WHERE x IN (SELECT ...)"
            raise refuse(query, join, f"this join has no incremental plan; {instead}")
        if how == "full" and (self.filters or self._has_comma):
            raise refuse(
                query,
                join,
                "a FULL JOIN behind a comma, or behind an inner join with other conditions than equalities; "
                "put what stands before it into a subquery",
            )
        named = any(join.args.get(name) for name in ("on", "using", "side", "kind", "method"))
        self._has_comma = self._has_comma or not named
        if how == "right" and len(sides) > 1:
            raise refuse(
                query,
                join,
                "a RIGHT JOIN is the first of its FROM; write the input that keeps all its rows first, and LEFT JOIN",
            )
        table = join.this
        called = table_function(query, table)
        if called is not None and not self._is_constant(called, join):
            return self._elements(sides, join, called)
        if join.method == "ASOF":
            return self._asof(sides, join)
        temporal = isinstance(table, exp.Table) and table.args.get("version") is not None
        if temporal and table.args["version"].expression.name.upper() not in ("PROCTIME", "NOW"):
            raise refuse(query, table, "only the present can be looked up; write FOR SYSTEM_TIME AS OF PROCTIME()")
        right = self._side(table)
        if any(side.alias.lower() == right.alias.lower() for side in sides):
            raise refuse(query, join, f"both sides have the name {right.alias}; give one another name with AS")
        if how == "right":
            sides[:] = [right]
            right, how = self._side(self._first), "left"
        side: Literal["inner", "left", "full"] = "left" if how == "left" else "full" if how == "full" else "inner"
        if side == "full" and temporal:
            raise refuse(query, join, "FOR SYSTEM_TIME AS OF PROCTIME() is for JOIN and LEFT JOIN")
        keys = self._keys(sides, right, join, terms, side)
        asked = (
            [] if side != "inner" or temporal else [*terms, *(terms_of(join.args["on"]) if join.args.get("on") else [])]
        )
        near = bounds(asked, partial(self._is_over, sides=list(sides)), partial(self._is_over, sides=[right]))
        interval = (
            None if near is None else (*(self._new_name([*sides, right], each) for each in (near.left, near.right)),)
        )
        sides.append(right)
        found = None if near is None or interval is None else (interval[0], interval[1], near.low_us, near.high_us)
        return _Step(right, side, keys, temporal, interval=found)

    def _new_name(self, sides: list[Side], column: exp.Column) -> str:
        """Of a column, where its input is joined with others."""
        side = Scope(self.query, sides).side_of(column)
        name = next((each for each in side.columns or () if each.lower() == column.name.lower()), column.name)
        return f"{side.alias}__{name}"

    def _asof(self, sides: list[Side], join: exp.Join) -> _Step:
        """Each row with the one of the other side that is nearest to it in an order."""
        usage = "write a ASOF JOIN b ON a.k = b.k AND a.ts >= b.ts, with one of >=, >, <= and <"
        right = self._side(join.this)
        condition = join.args.get("on")
        terms = terms_of(condition) if condition is not None else []
        orders = [term for term in terms if isinstance(term, exp.GTE | exp.GT | exp.LTE | exp.LT)]
        keys = [self._pair(sides, right, term) for term in terms if term not in orders]
        how = (join.side or "").lower()
        if how not in ("", "left") or len(orders) != 1 or not keys or any(pair is None for pair in keys):
            raise refuse(self.query, join, f"an ASOF join is inner or LEFT, by equalities and one order; {usage}")
        if any(side.alias.lower() == right.alias.lower() for side in sides):
            raise refuse(self.query, join, f"both sides have the name {right.alias}; give one another name with AS")
        (order,) = orders
        sign = _SIGNS[type(order)]
        if self._is_over(order.this, sides) and self._is_over(order.expression, [right]):
            near = (self._over(order.this, sides), sign, self._over(order.expression, [right]))
        elif self._is_over(order.this, [right]) and self._is_over(order.expression, sides):
            turned = sign.translate(str.maketrans("<>", "><"))
            near = (self._over(order.expression, sides), turned, self._over(order.this, [right]))
        else:
            raise refuse(self.query, order, f"the order of an ASOF join compares both sides; {usage}")
        sides.append(right)
        pairs = tuple(pair for pair in keys if pair is not None)
        return _Step(right, "left" if how else "inner", pairs, False, asof=near)

    def _elements(self, sides: list[Side], join: exp.Join, called: TableFunction) -> _Step:
        """A function over the columns of what stands before it, or over none of them."""
        how = (join.side or "").lower()
        if how not in ("", "left") or join.args.get("using") or join.method:
            raise refuse(
                self.query, join, "unnest() and generate_series() stand behind a comma, CROSS JOIN, JOIN or LEFT JOIN"
            )
        if any(side.alias.lower() == called.alias.lower() for side in sides):
            raise refuse(self.query, join, f"both sides have the name {called.alias}; give one another name with AS")
        columns = (called.column,) if called.ordinality is None else (called.column, called.ordinality)
        right = Side(called.alias, Scan(""), columns)
        scope = Scope(self.query, [*sides, right])
        array, kind = elements(self.query, scope, called, join.this)
        right.kinds = {called.column.lower(): kind, **({called.ordinality.lower(): "int"} if called.ordinality else {})}
        condition = join.args.get("on")
        asked = [] if condition is None else [each for each in terms_of(condition) if each != exp.true()]
        if asked and how == "left":
            raise refuse(self.query, asked[0], "a LEFT JOIN with a function takes ON true")
        self.filters += asked
        self._has_comma = True
        sides.append(right)
        return _Step(right, "left" if how else "inner", (), False, array)

    def _is_constant(self, called: TableFunction, join: exp.Join) -> bool:
        """Whether a function is an input of its own of an outer join, which it may be where it reads no columns."""
        reads = any(argument.find(exp.Column) for argument in called.arguments)
        asked = join.args.get("on") not in (None, exp.true())
        how = (join.side or "").lower()
        return not reads and bool(join.args.get("using") or how in ("right", "full") or (how == "left" and asked))

    def _keys(
        self, sides: list[Side], right: Side, join: exp.Join, terms: list[exp.Expr], how: str
    ) -> tuple[tuple[str, str], ...]:
        using = self._common(sides, right, join) if join.method == "NATURAL" else join.args.get("using")
        if using:
            columns = [exp.column(item.name) for item in using]
            for column, item in zip(columns, using, strict=True):
                column.this.meta.update(item.meta)
            keys = [(self._over(column, sides), self._over(column, [right])) for column in columns]
            if how != "full":  # there it is whichever of the two is not NULL
                right.merged = tuple(column.name.lower() for column in columns)
            return tuple(keys)
        condition = join.args.get("on")
        first = "a" if sides[0].alias.startswith(ADDED) else sides[0].alias
        second = "b" if right.alias.startswith(ADDED) else right.alias
        fix = f"write ON {first}.x = {second}.y; other conditions go into WHERE or into a subquery"
        keys = []
        for term in terms_of(condition) if condition is not None else terms:
            pair = self._pair(sides, right, term)
            if pair is not None:
                keys.append(pair)
            elif condition is not None and how == "left" and self._is_over(term, [right]):
                # what matches nothing is NULL on the right, whichever condition it fails
                right.plan = Project(right.plan, (Named("*", "*"),), self._over(term, [right]))
            elif condition is not None and how != "inner":
                raise refuse(self.query, term, f"an outer join is by equality of both sides; {fix}")
            elif condition is not None:
                self.filters.append(term)
        if not keys and (how != "inner" or condition is not None):
            raise refuse(self.query, join, f"a join is by an equality of both sides; {fix}")
        return tuple(keys) or (("TRUE", "TRUE"),)

    def _common(self, sides: list[Side], right: Side, join: exp.Join) -> list[exp.Identifier]:
        """The columns that a NATURAL JOIN is by."""
        known = {name.lower() for side in sides for name in side.columns or ()}
        found = [exp.to_identifier(name, quoted=True) for name in right.columns or () if name.lower() in known]
        if not found or any(side.columns is None for side in (*sides, right)):
            fix = f"write JOIN {right.alias} USING (x)"
            raise refuse(self.query, join, f"a NATURAL JOIN needs columns of the same name, which are known; {fix}")
        return found

    def _pair(self, sides: list[Side], right: Side, term: exp.Expr) -> tuple[str, str] | None:
        """The halves of an equality between the sides so far and the next one; None for anything else."""
        if not isinstance(term, exp.EQ) or term.find(exp.Query, exp.Any, exp.All):
            return None
        for one, other in ((term.this, term.expression), (term.expression, term.this)):
            if self._is_over(one, sides) and self._is_over(other, [right]):
                return self._over(one, sides), self._over(other, [right])
        return None

    def _is_over(self, node: exp.Expr, sides: list[Side]) -> bool:
        """Whether all its columns, of which there are some, are of these sides."""
        columns = list(node.find_all(exp.Column))
        return bool(columns) and all(self._has(sides, column) for column in columns)

    def _has(self, sides: list[Side], column: exp.Column) -> bool:
        if column.table:
            return any(side.alias.lower() == column.table.lower() for side in sides)
        return any(column.name.lower() in (name.lower() for name in side.columns or ()) for side in sides)

    def _over(self, node: exp.Expr, sides: list[Side]) -> str:
        """Spark SQL over one input as it is, or over several that are joined already."""
        if len(sides) > 1:
            joined = Scope(self.query, sides)
            return joined.sql(joined.resolved(node))
        (side,) = sides
        alone = Scope(self.query, [Side(side.alias, side.plan, side.columns, side.kinds)])
        return alone.sql(alone.resolved(node))


@dataclass(frozen=True)
class _Step:
    """A join with what stands left of it."""

    right: Side
    how: Literal["inner", "left", "full"]
    keys: tuple[tuple[str, str], ...]
    temporal: bool
    array: str | None = None
    """Of a function: Spark SQL of the array whose elements it gives, over what stands left of it."""
    interval: tuple[str, str, int | None, int | None] | None = None
    """As the plan's Join has it."""
    asof: tuple[str, str, str] | None = None
    """As the plan's Join has it."""


def _joined(sides: list[Side], steps: list[_Step]) -> Plan:
    """All joins, each over the result of the one before; a column of `o` is called `o__x` from its first join on."""
    found = sides[0].plan
    for number, step in enumerate(steps):
        before = sides[: number + 1]
        columns = [column for side in before for column in _named(side, number > 0)]
        if step.array is not None:
            right = step.right
            names = [f"{right.alias}__{name}" for name in right.columns or ()]
            outer, kind = step.how == "left", next(iter(right.kinds.values()))
            found = Unnest(
                Project(found, tuple(columns)), step.array, names[0], names[1] if names[1:] else None, outer, kind
            )
            continue
        found = Join(
            found,
            step.right.plan,
            step.how,
            step.keys,
            tuple(columns),
            tuple(_named(step.right, False)),
            step.temporal,
            step.interval,
            step.asof,
        )
    return found


def _named(side: Side, is_joined: bool) -> list[Named]:
    names = [(name, f"{side.alias}__{name}") for name in side.used]
    return [Named(_identifier(new if is_joined else name), new, side.kinds.get(name.lower())) for name, new in names]


def _identifier(name: str) -> str:
    return str(exp.column(exp.to_identifier(name, quoted=not name.isidentifier())).sql("spark"))
