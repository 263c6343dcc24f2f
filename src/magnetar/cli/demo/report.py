"""What the demo says at its end."""

from __future__ import annotations

import click
import numpy as np

from magnetar.cli.demo import views_report
from magnetar.cli.demo.flights import Outcome
from magnetar.cli.demo.verdict import CARRIER_SUM
from magnetar.cli.output import emit, print_json


def as_tables(outcome: Outcome) -> None:
    """For people: who did what, the sums, the verdict."""
    emit(consumers(outcome), as_json=False, title="consumers")
    click.echo()
    emit(short_sums(outcome), as_json=False, title="sums")
    click.echo()
    rows = [{"what": name.replace("_", " "), "value": value} for name, value in verdict(outcome).items()]
    emit(rows, as_json=False, title="verdict")
    if outcome.views is not None:
        views_report.as_tables(outcome.views)


def as_document(outcome: Outcome) -> None:
    """For programs: the same as one JSON document."""
    document = verdict(outcome) | {"consumers": consumers(outcome), "sums": sums(outcome)}
    if outcome.views is not None:
        document["views"] = views_report.as_document(outcome.views)
    print_json(document | {"problems": outcome.problems})


def verdict(outcome: Outcome) -> dict[str, object]:
    found = outcome.verdict
    return {
        "messages": found.messages,
        "lost": found.lost,
        "duplicated": found.duplicated,
        "duplicated_without_a_reason": found.unexplained,
        "out_of_order_per_key": found.out_of_order,
        "damaged": found.corrupted,
        "produced_per_s": round(found.messages / outcome.produce_s),
        "consumed_per_s": round(found.messages / outcome.consume_s),
        "seconds": round(outcome.consume_s, 1),
        "server_start_s": round(outcome.start_s, 2),
    }


def consumers(outcome: Outcome) -> list[dict[str, object]]:
    """A row for each consumer; the rate is over the time between its first and last message."""
    rows: list[dict[str, object]] = []
    for log in outcome.logs:
        times = log.records["time_ns"]
        seconds = float(times[-1] - times[0]) / 1e9 if len(times) > 1 else 0.0
        rows.append(
            {
                "consumer": log.consumer,
                "messages": len(times),
                "keys": len(np.unique(outcome.key_ids[log.records["index"]])),
                "redelivered": int(log.records["redelivered"].sum()),
                "messages_per_s": round(len(times) / seconds) if seconds else 0,
                "fate": "kill -9 half way" if log.killed else "to the end",
            }
        )
    return rows


def sums(outcome: Outcome) -> list[dict[str, object]]:
    return [
        {"sum": name, "file": wanted, "consumed": got, "equal": wanted == got}
        for name, (wanted, got) in outcome.verdict.sums.items()
    ]


def short_sums(outcome: Outcome) -> list[dict[str, object]]:
    """The sums with all carriers that are right in one row."""
    rows = sums(outcome)
    carriers = [row for row in rows if str(row["sum"]).startswith(CARRIER_SUM) and row["equal"]]
    total = sum(wanted for name, (wanted, _) in outcome.verdict.sums.items() if name.startswith(CARRIER_SUM))
    got = sum(got for name, (_, got) in outcome.verdict.sums.items() if name.startswith(CARRIER_SUM))
    together = {
        "sum": f"flights, each of {len(carriers)} carriers right",
        "file": total,
        "consumed": got,
        "equal": total == got,
    }
    return [row for row in rows if row not in carriers] + [together]
