"""What the demo says of its views at its end."""

from __future__ import annotations

from typing import Any

import click

from magnetar.cli.demo.views import ViewsOutcome
from magnetar.cli.output import emit


def as_tables(outcome: ViewsOutcome) -> None:
    """For people: epochs, a few rows of the views next to pandas, all totals, the map of vnodes."""
    click.echo()
    emit(outcome.epochs, as_json=False, title="epochs of the views")
    for each in outcome.comparisons:
        click.echo()
        emit(each.shown, as_json=False, title=f"view {each.view}: the largest rows, pandas over the file | view")
    click.echo()
    emit(totals(outcome), as_json=False, title="views against pandas over the file, every row compared")
    click.echo()
    emit(rescale(outcome), as_json=False, title="rescale: a map moved, no state written anew")
    if outcome.picture is not None:
        click.echo(f"map of vnodes before and after: {outcome.picture}")


def as_document(outcome: ViewsOutcome) -> dict[str, Any]:
    """For programs."""
    return {
        "rows": outcome.rows,
        "spark_start_s": round(outcome.start_s, 1),
        "seconds": round(outcome.run_s, 1),
        "read_s": round(outcome.read_s, 1),
        "epochs": outcome.epochs,
        "rescale": rescale(outcome),
        "comparisons": [
            {
                "view": each.view,
                "rows": each.rows,
                "expected_rows": each.expected_rows,
                "differing": each.differing,
                "totals": {name: {"file": wanted, "view": got} for name, (wanted, got) in each.totals.items()},
            }
            for each in outcome.comparisons
        ],
        "picture": str(outcome.picture) if outcome.picture is not None else None,
    }


def totals(outcome: ViewsOutcome) -> list[dict[str, object]]:
    return [
        {
            "view": each.view,
            "rows": f"{each.rows:,}",
            "rows that differ": each.differing,
            "sum of": name,
            "file": f"{wanted:,.10g}",
            "view's": f"{got:,.10g}",
        }
        for each in outcome.comparisons
        for name, (wanted, got) in each.totals.items()
    ]


def rescale(outcome: ViewsOutcome) -> list[dict[str, object]]:
    """Vnodes of each unit before and after."""
    if outcome.before is None or outcome.after is None:
        return []
    before, after = outcome.before.counts(), outcome.after.counts()
    rows: list[dict[str, object]] = [
        {"unit": unit, "vnodes before": before.get(unit, 0), "vnodes after": after.get(unit, 0)}
        for unit in sorted(before | after)
    ]
    return [
        *rows,
        {
            "unit": "moved",
            "vnodes before": "",
            "vnodes after": f"{outcome.moved}, {outcome.pause_s * 1000:.1f} ms pause",
        },
    ]
