"""Aggregates that Spark has in another form: arrays in an order, FILTER of what has become an expression, percentiles."""

from __future__ import annotations

from sqlglot import exp

from magnetar.pipeline.sql.typed import kind, of_kind, refused, spark_of


def array_agg(node: exp.Expr) -> exp.Expr:
    """All rows, NULL among them, in the order that is asked for; of no rows NULL."""
    inner, order = node.this, None
    if isinstance(inner, exp.Order):
        inner, order = inner.this, inner.expressions
    if isinstance(inner, exp.Distinct):
        if order is not None or len(inner.expressions) != 1:
            raise refused("array_agg(DISTINCT ... ORDER BY ...)", "leave ORDER BY out: the values are in order then")
        values = "TRANSFORM(COLLECT_SET(NAMED_STRUCT('n', _0 IS NULL, 'v', _0)), e -> e)"
        return of_kind(
            spark_of(f"NULLIF(TRANSFORM(SORT_ARRAY({values}), e -> e.v), ARRAY())", inner.expressions[0]), "array"
        )
    if order is None:
        template = "NULLIF(TRANSFORM(COLLECT_LIST(NAMED_STRUCT('v', _0)), e -> e.v), ARRAY())"
        return of_kind(spark_of(template, inner), "array")
    down = {bool(each.args.get("desc")) for each in order}
    if len(down) != 1:
        raise refused("array_agg with ASC and DESC together", "order by the negative of a number instead")
    (descending,) = down
    fields, nodes = [], [inner]
    for number, each in enumerate(order, 1):
        first = "TRUE" if bool(each.args.get("nulls_first")) == descending else "FALSE"
        fields += [f"'n{number}', (_{number} IS NULL) = {first}", f"'k{number}', _{number}"]
        nodes.append(each.this)
    rows = f"COLLECT_LIST(NAMED_STRUCT({', '.join(fields)}, 'v', _0))"
    found = spark_of(
        f"NULLIF(TRANSFORM(SORT_ARRAY({rows}, {'FALSE' if descending else 'TRUE'}), e -> e.v), ARRAY())", *nodes
    )
    return of_kind(found, "array")


def filtered(node: exp.Expr) -> exp.Expr:
    """FILTER (WHERE ...) of an aggregate; of one that has become an expression over others it is theirs."""
    inner = node.this
    if isinstance(inner, exp.AggFunc):
        return of_kind(node, kind(node.this))
    found = inner.copy()
    calls = [each for each in found.find_all(exp.AggFunc) if each.find_ancestor(exp.Filter) is None]
    for each in calls:
        each.replace(exp.Filter(this=each.copy(), expression=node.expression.copy()))
    return of_kind(found, kind(inner)) if calls else of_kind(node, kind(node.this))


def within_group(node: exp.Expr) -> exp.Expr:
    """`percentile_cont(0.5) WITHIN GROUP (ORDER BY x)`; sqlglot would take Spark's approximation."""
    order = node.expression.expressions
    if not isinstance(node.this, exp.PercentileCont) or len(order) != 1 or order[0].args.get("desc"):
        raise refused("this WITHIN GROUP", "write percentile_cont(0.5) WITHIN GROUP (ORDER BY x)")
    return of_kind(spark_of("PERCENTILE(_0, _1)", order[0].this, node.this.this), "float")
