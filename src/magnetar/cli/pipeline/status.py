"""`magnetar pipeline list` and `status`."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from magnetar.base.clock import SystemClock
from magnetar.base.errors import MagnetarError
from magnetar.cli.output import emit, emit_record, on_terminal, output_options, print_json
from magnetar.cli.pipeline.access import meant, size_text
from magnetar.pipeline.home import names
from magnetar.pipeline.views.control.listing import Overview, overview
from magnetar.pipeline.views.control.status import FAILED, KILLED, RUNNING, STARTING

WATCH_S: Final = 1.0


@click.command("list")
@output_options
def list_command(as_json: bool) -> None:
    """List all pipelines in $MAGNETAR_HOME/pipelines and their states."""
    rows = []
    for name in names():
        try:
            rows.append(_row(overview(name, SystemClock())))
        except MagnetarError as error:  # one that is damaged must not hide the others
            rows.append({**_row(None), "name": name, "state": "damaged", "note": str(error)})
    emit(rows, as_json=as_json, title="pipelines")


@click.command("status")
@click.argument("name", required=False)
@click.option("-w", "--watch", is_flag=True, help="Repeat every second, until Ctrl-C or the end of the pipeline.")
@output_options
def status_command(name: str | None, watch: bool, as_json: bool) -> None:
    """Show rows, epochs, lag and state of pipeline NAME, which may be omitted when there is only one.

    With --json --watch each second is one line. The exit code is 1 when the pipeline failed or its driver was killed.
    """
    while True:
        found = meant(name)
        if watch and on_terminal() and not as_json:
            click.clear()
        show(found, as_json=as_json)
        if not watch or found.status.state not in (STARTING, RUNNING):
            break
        time.sleep(WATCH_S)
    if found.status.state in (FAILED, KILLED):
        click.get_current_context().exit(1)


def show(found: Overview, *, as_json: bool) -> None:
    """A record of the pipeline and a table of its views."""
    if as_json:
        print_json(found.describe())
        return
    status = found.status
    record: dict[str, object] = {
        "name": status.name,
        "state": _state(found),
        "directory": status.directory,
        "epoch": status.epoch,
        "units": status.units,
        "rows": status.rows,
        "rows/s": round(status.rows_per_s),
        "epoch time": f"{status.epoch_s:.2f} s",
        "busy": f"{status.busy:.0%}, units {status.work:.0%}",
        "lag": "unknown" if status.lag_messages is None else status.lag_messages,
        "state size": size_text(status.state_bytes),
    }
    record |= {f"count of {event}": count for event, count in status.counters.items()}
    if status.adaptive and status.state == RUNNING:
        bounds = status.adaptive
        record["adaptive"] = f"{bounds['least']} to {bounds['most']} units" + (
            f"; last {bounds['reason']}" if bounds["reason"] else ""
        )
    if status.rescaled:
        moved = status.rescaled
        record["rescaled"] = (
            f"{moved['vnodes_moved']} vnodes to {moved['units']} units at epoch {moved['epoch']}, pause {moved['pause_s']:.2f} s"
        )
    emit_record(record, as_json=False, title=status.name)
    rows: list[dict[str, Any]] = [{"view": view, **numbers} for view, numbers in found.views().items()]
    emit(rows, as_json=False, title="views")


def _state(found: Overview) -> str:
    status = found.status
    if status.state == KILLED:
        return f"killed: process {status.pid} is gone; run it again to continue"
    if status.state == FAILED:
        return f"failed: {status.error}"
    return f"{status.state} (process {status.pid})" if status.state in (STARTING, RUNNING) else status.state


def _row(found: Overview | None) -> dict[str, object]:
    if found is None:
        return dict.fromkeys(
            ("name", "state", "epoch", "units", "rows_per_s", "lag_messages", "state_bytes", "views", "note")
        )
    status = found.status
    return {
        "name": status.name,
        "state": status.state,
        "epoch": status.epoch,
        "units": status.units,
        "rows_per_s": round(status.rows_per_s),
        "lag_messages": status.lag_messages,
        "state_bytes": status.state_bytes,
        "views": ", ".join(found.views()),
        "note": status.error,
    }
