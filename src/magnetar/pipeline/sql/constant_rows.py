"""VALUES as a SELECT, so that its rows mean what the same expressions mean in a select list."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from magnetar.pipeline.sql.scope import ADDED, refuse
from magnetar.pipeline.sql.statements import Query

ROWS_MAX: Final = 1_000
"""VALUES of more rows are refused: they belong into a table, which INSERT fills."""

_ROW: Final = f"{ADDED}_row"


def rows_of(query: Query, node: exp.Values) -> exp.Select:
    """`VALUES (a, b), (c, d)`: of each column its value in the row of that number, as CASE has it, which finds the columns' types as
    VALUES does. Columns are called `column1`, ... as in PostgreSQL. PlanRefusedError for rows of different lengths."""
    rows = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in node.expressions]
    if len(rows) > ROWS_MAX:
        raise refuse(
            query,
            node,
            f"VALUES of {len(rows)} rows; of more than {ROWS_MAX} make a CREATE TABLE and INSERT them there",
        )
    if len({len(row) for row in rows}) > 1:
        lengths = ", ".join(str(each) for each in sorted({len(row) for row in rows}))
        raise refuse(query, node, f"the rows of VALUES have {lengths} columns; give each the same number")
    names = [f"column{number}" for number in range(1, len(rows[0]) + 1)]
    if len(rows) == 1:
        return exp.select(*[exp.alias_(cell.copy(), name) for cell, name in zip(rows[0], names, strict=True)])
    outputs = []
    for place, name in enumerate(names):
        whens = [exp.If(this=exp.column(_ROW).eq(number), true=row[place].copy()) for number, row in enumerate(rows, 1)]
        outputs.append(exp.alias_(exp.Case(ifs=whens), name))
    numbers = [exp.Literal.number(1), exp.Literal.number(len(rows))]
    call = exp.Anonymous(this="generate_series", expressions=numbers)
    label = exp.TableAlias(this=exp.to_identifier(f"{_ROW}s"), columns=[exp.to_identifier(_ROW)])
    return exp.select(*outputs).from_(exp.Table(this=call, alias=label))
