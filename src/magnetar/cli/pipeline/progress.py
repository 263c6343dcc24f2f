"""What `magnetar pipeline run` shows: a picture that stays in place on a terminal, a line an epoch elsewhere, JSON when asked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

import click

from magnetar.cli.output import print_json
from magnetar.cli.pipeline.access import size_text
from magnetar.pipeline.views.control.status import Status
from magnetar.pipeline.views.epoch.progress import EpochReport


class Progress(Protocol):
    """Told of epochs by the driver's thread, of remarks by any."""

    def __enter__(self) -> Progress: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None: ...

    def epoch(self, report: EpochReport, status: Status) -> None: ...


class JsonLines:
    """An epoch is a line on stdout; remarks go to stderr."""

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def say(self, text: str) -> None:
        click.echo(text, err=True)

    def epoch(self, report: EpochReport, status: Status) -> None:
        lag = status.lag_messages
        rates = {"lag_messages": lag, "rows_per_s": round(status.rows_per_s, 1), "busy": round(status.busy, 3)}
        print_json({"pipeline": status.name, **report.describe(), **rates, "rows": status.rows})
        sys.stdout.flush()


class Lines(JsonLines):
    """For logs and pipes."""

    def epoch(self, report: EpochReport, status: Status) -> None:
        click.echo(line(report, status))
        sys.stdout.flush()


class Picture(JsonLines):
    """rich's live display."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(), auto_refresh=False, transient=False)

    def __enter__(self) -> Picture:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._live.console.print(text, highlight=False)

    def epoch(self, report: EpochReport, status: Status) -> None:
        self._live.update(_table(report, status), refresh=True)


def progress(as_json: bool) -> Progress:
    """What fits who looks."""
    if as_json:
        return JsonLines()
    return Picture() if sys.stdout.isatty() else Lines()


def line(report: EpochReport, status: Status) -> str:
    """One epoch."""
    parts = [
        f"epoch {report.epoch}",
        f"{report.rows_in:,} rows",
        f"{status.rows_per_s:,.0f} rows/s",
        f"{status.epoch_s:.2f} s",
        f"lag {_lag(status)}",
        f"state {size_text(report.state_bytes)}",
        f"{report.units} units",
        *(f"{view} +{changes:,}" for view, changes in report.rows_changed.items()),
        *(f"{event} {count:,}" for event, count in report.counters.items() if count),
    ]
    if report.vnodes_moved:
        parts.append(f"rescaled: {report.vnodes_moved} vnodes moved, pause {report.pause_s:.2f} s")
    return "  ".join(parts)


def _lag(status: Status) -> str:
    return "unknown" if status.lag_messages is None else f"{status.lag_messages:,}"


def _table(report: EpochReport, status: Status) -> Any:
    from rich.table import Table

    table = Table(title=f"{status.name}: epoch {report.epoch}, {report.units} units", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    facts: Mapping[str, str] = {
        "rows": f"{status.rows:,}",
        "rows/s": f"{status.rows_per_s:,.0f}",
        "epoch time": f"{status.epoch_s:.2f} s",
        "busy": f"{status.busy:.0%}",
        "lag": _lag(status),
        "state": size_text(report.state_bytes),
    }
    for name, value in facts.items():
        table.add_row(name, value)
    for view, numbers in status.views.items():
        table.add_row(view, f"{numbers['changes']:,} changes (+{numbers['last']:,})")
    for event, count in status.counters.items():
        table.add_row(event, f"{count:,}")
    if status.rescaled:
        moved = status.rescaled
        table.add_row(
            "rescaled", f"{moved['vnodes_moved']} vnodes to {moved['units']} units, pause {moved['pause_s']:.2f} s"
        )
    return table
