"""FROM: names, subqueries, TUMBLE and HOP, and joins by equality."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from sqlglot import exp

from magnetar.pipeline.sql.intervals import interval_us
from magnetar.pipeline.sql.plan import Join, LateRows, Named, Plan, Scan, Windowed, output_kinds, output_names
from magnetar.pipeline.sql.scope import Columns, Relations, Scope, Side, refuse
from magnetar.pipeline.sql.statements import Query

PlanOf: TypeAlias = Callable[[Query, exp.Expr, Relations, dict[str, Plan]], Plan]


class FromClause:
    """Reads the FROM of one SELECT. `named` are the plans of WITH, `plan_of` plans a subquery."""

    def __init__(self, query: Query, relations: Relations, named: dict[str, Plan], plan_of: PlanOf) -> None:
        self.query = query
        self.relations = relations
        self.named = named
        self.plan_of = plan_of

    def read(self, tree: exp.Select) -> tuple[Scope, Callable[[], Plan]]:
        """The scope, and a function for the plan: a join's columns are those that were asked of the scope by then."""
        first = self._side(tree.args["from_"].this)
        joins = tree.args.get("joins") or []
        if not joins:
            return Scope(self.query, [first]), lambda: first.plan
        if len(joins) > 1:
            raise refuse(
                self.query,
                joins[1],
                "a view joins two inputs; join the first two in a subquery or in a view of its own",
            )
        return self._join(first, joins[0])

    def _side(self, node: exp.Expr) -> Side:
        if isinstance(node, exp.Subquery):
            plan = self.plan_of(self.query, node.this, self.relations, self.named)
            return Side(node.alias or "subquery", plan, output_names(plan), self._kinds(plan))
        if not isinstance(node, exp.Table):
            raise refuse(self.query, node, "FROM takes sources, views, subqueries, TUMBLE, HOP and LATE_ROWS")
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
                return Side(alias, Scan(name), columns, self._kinds(Scan(name)))
        known = ", ".join(sorted(self.relations)) or "nothing yet"
        raise refuse(
            self.query,
            node,
            f"{node.name} does not exist; CREATE SOURCE or a view of that name first (there is {known})",
        )

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
            raise refuse(
                self.query,
                node,
                f"{function}() is not a table function here; use TUMBLE(t, ts, size), HOP(t, ts, slide, size) or LATE_ROWS(v)",
            )
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

    def _join(self, left: Side, join: exp.Join) -> tuple[Scope, Callable[[], Plan]]:
        query = self.query
        side = (join.side or "").lower()
        if side in ("right", "full") or join.kind in ("CROSS", "SEMI", "ANTI") or join.method:
            instead = (
                "swap the sides and write LEFT JOIN" if side == "right" else "use JOIN or LEFT JOIN ... ON a.x = b.x"
            )
            raise refuse(query, join, f"this join has no incremental plan; {instead}")
        table = join.this
        temporal = isinstance(table, exp.Table) and table.args.get("version") is not None
        if temporal and table.args["version"].expression.name.upper() not in ("PROCTIME", "NOW"):
            raise refuse(query, table, "only the present can be looked up; write FOR SYSTEM_TIME AS OF PROCTIME()")
        right = self._side(table)
        if left.alias.lower() == right.alias.lower():
            raise refuse(query, join, f"both sides have the name {left.alias}; give one another name with AS")
        scope = Scope(query, [left, right])
        keys = self._keys(scope, join, left, right)

        def plan() -> Join:
            columns = [
                tuple(Named(_identifier(name), f"{of.alias}__{name}", of.kinds.get(name.lower())) for name in of.used)
                for of in (left, right)
            ]
            return Join(
                left.plan, right.plan, "left" if side == "left" else "inner", keys, columns[0], columns[1], temporal
            )

        return scope, plan

    def _keys(self, scope: Scope, join: exp.Join, left: Side, right: Side) -> tuple[tuple[str, str], ...]:
        using = join.args.get("using")
        if using:
            return tuple((_identifier(item.name), _identifier(item.name)) for item in using)
        condition = join.args.get("on")
        fix = f"write ON {left.alias}.x = {right.alias}.y; other conditions go into WHERE or into a subquery"
        if condition is None:
            raise refuse(self.query, join, f"a join needs an equality; {fix}")
        keys = []
        for term in condition.flatten() if isinstance(condition, exp.And) else [condition]:
            sides = (
                [self._only_side(scope, half) for half in (term.this, term.expression)]
                if isinstance(term, exp.EQ)
                else []
            )
            if len(sides) != 2 or None in sides or sides[0] is sides[1]:
                raise refuse(self.query, term, f"a join is by equality of both sides; {fix}")
            halves = [self._on_one(side, half) for side, half in zip(sides, (term.this, term.expression), strict=True)]
            keys.append((halves[0], halves[1]) if sides[0] is left else (halves[1], halves[0]))
        return tuple(keys)

    def _only_side(self, scope: Scope, node: exp.Expr) -> Side | None:
        sides = [scope.side_of(column) for column in node.find_all(exp.Column)]
        return sides[0] if sides and all(side is sides[0] for side in sides) else None

    def _on_one(self, side: Side | None, node: exp.Expr) -> str:
        assert side is not None
        alone = Scope(self.query, [Side(side.alias, side.plan, side.columns, side.kinds)])
        return alone.sql(alone.resolved(node))


def _identifier(name: str) -> str:
    return str(exp.column(exp.to_identifier(name, quoted=not name.isidentifier())).sql("spark"))
