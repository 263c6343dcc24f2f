"""Plans of the planner as DuckDB's SQL, so that what a query was rewritten to can be held beside the query itself."""

from __future__ import annotations

import sqlglot

from magnetar.pipeline.sql.plan import (
    Aggregate,
    Call,
    Dedup,
    Join,
    Named,
    OneRow,
    Order,
    Plan,
    Project,
    Recompute,
    Scan,
    TopN,
    UnionAll,
    Unnest,
)


def as_sql(plan: Plan) -> str:
    """A SELECT of the plan's rows."""
    match plan:
        case Scan(name):
            return f"SELECT * FROM {name}"
        case OneRow():
            return "SELECT 1 AS __nothing"
        case Unnest():
            return f'SELECT *, unnest({duckdb(plan.array)}) AS "{plan.name}" FROM ({as_sql(plan.input)}) AS i'
        case Project():
            return f"SELECT {_outputs(plan.outputs)} FROM ({as_sql(plan.input)}) AS i{_where(plan.condition)}"
        case Aggregate():
            return _aggregate(plan)
        case Join():
            return _join(plan)
        case TopN():
            number = f"row_number() OVER ({_over(plan.partition_by, plan.order_by)}) AS {plan.rank or '__number'}"
            rank = plan.rank or "__number"
            shown = _outputs(plan.outputs) + ("" if plan.rank is None else f", {plan.rank}")
            inner = f"SELECT *, {number} FROM ({as_sql(plan.input)}) AS i{_where(plan.condition)}"
            first, last = plan.offset + 1, plan.offset + plan.limit
            return f"SELECT {shown} FROM ({inner}) AS i WHERE {rank} BETWEEN {first} AND {last}"
        case Dedup():
            return as_sql(TopN(plan.input, plan.keys, plan.order_by, 1, plan.outputs, None, plan.condition))
        case UnionAll():
            return " UNION ALL ".join(f"(SELECT * FROM ({as_sql(each)}) AS u)" for each in plan.inputs)
        case Recompute():
            group = f" GROUP BY {', '.join(map(duckdb, plan.keys))}" if plan.grouped else ""
            having = "" if plan.having is None else f" HAVING {duckdb(plan.having)}"
            below = f"({as_sql(plan.input)}) AS i{_where(plan.condition)}"
            return f"SELECT {_outputs(plan.outputs)} FROM {below}{group}{having}"
        case _:
            raise NotImplementedError(type(plan).__name__)


def duckdb(spark_sql: str) -> str:
    return sqlglot.parse_one(spark_sql, read="spark").sql("duckdb")


def _outputs(outputs: tuple[Named, ...]) -> str:
    if not outputs:
        return "1 AS __nothing"
    return ", ".join("*" if o.name == "*" else f'{duckdb(o.sql)} AS "{o.name}"' for o in outputs)


def _where(condition: str | None) -> str:
    return "" if condition is None else f" WHERE {duckdb(condition)}"


def _aggregate(plan: Aggregate) -> str:
    inner = ", ".join([*([_outputs(plan.keys)] if plan.keys else []), *map(_call, plan.calls)])
    group = f" GROUP BY {', '.join(duckdb(key.sql) for key in plan.keys)}" if plan.keys else ""
    below = f"SELECT {inner} FROM ({as_sql(plan.input)}) AS i{_where(plan.condition)}{group}"
    return f"SELECT {_outputs(plan.outputs)} FROM ({below}) AS g{_where(plan.having)}"


def _call(call: Call) -> str:
    argument = "*" if call.argument is None else duckdb(call.argument)
    function = call.function
    if function == "count_distinct":
        function, argument = "count", f"DISTINCT {argument}"
    condition = "" if call.condition is None else f" FILTER (WHERE {duckdb(call.condition)})"
    return f'{function}({argument}){condition} AS "{call.name}"'


def _join(plan: Join) -> str:
    def side(below: Plan, columns: tuple[Named, ...], keys: list[str], letter: str) -> str:
        on = ", ".join(f"{duckdb(key)} AS {letter}{n}" for n, key in enumerate(keys))
        return f"(SELECT {', '.join(filter(None, [_outputs(columns), on]))} FROM ({as_sql(below)}) AS i)"

    near = [] if plan.asof is None else [(plan.asof[0], plan.asof[2])]
    left = side(plan.left, plan.left_columns, [ours for ours, _ in (*plan.keys, *near)], "__l")
    right = side(plan.right, plan.right_columns, [theirs for _, theirs in (*plan.keys, *near)], "__r")
    on = " AND ".join(f"l.__l{n} = r.__r{n}" for n in range(len(plan.keys)))
    if plan.asof is not None:
        on += f" AND l.__l{len(plan.keys)} {plan.asof[1]} r.__r{len(plan.keys)}"
    names = ", ".join(f'"{column.name}"' for column in (*plan.left_columns, *plan.right_columns)) or "1"
    return (
        f"SELECT {names} FROM {left} AS l {'ASOF ' if plan.asof else ''}{plan.side.upper()} JOIN {right} AS r ON {on}"
    )


def _over(partition_by: tuple[str, ...], order_by: tuple[Order, ...]) -> str:
    partition = f"PARTITION BY {', '.join(map(duckdb, partition_by))} " if partition_by else ""
    orders = [
        f"{duckdb(by.sql)} {'DESC' if by.descending else 'ASC'} NULLS {'FIRST' if by.nulls_first else 'LAST'}"
        for by in order_by
    ]
    return partition + (f"ORDER BY {', '.join(orders)}" if orders else "")
