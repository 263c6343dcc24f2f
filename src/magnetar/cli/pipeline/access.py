"""What the pipeline commands share: the pipeline that is meant, and a driver that is asked for something."""

from __future__ import annotations

import time
from typing import Any, Final

from magnetar.base.clock import SystemClock
from magnetar.cli.errors import CommandError
from magnetar.pipeline.home import Place
from magnetar.pipeline.views.control import listing
from magnetar.pipeline.views.control import requests as control
from magnetar.pipeline.views.control.driver_lock import Holder, holder
from magnetar.pipeline.views.control.listing import Overview
from magnetar.pipeline.views.control.requests import Kind

POLL_S: Final = 0.05


def meant(name: str | None) -> Overview:
    """The pipeline of that name, or the only one. CatalogError."""
    return listing.meant(name, SystemClock())


def ask_driver(place: Place, kind: Kind, timeout_s: float, units: int | None = None, least: int = 1) -> dict[str, Any]:
    """The driver's answer. CommandError when it refuses, ends without answering, or does not answer in time."""
    running = holder(place.local)
    if running is None:
        raise CommandError(f"pipeline {place.name} is not running")
    number = control.ask(place.local, SystemClock(), kind, units, least)
    deadline_s = time.monotonic() + timeout_s
    while True:
        gone = holder(place.local) is None
        answer = control.take_answer(place.local, number)
        if answer is not None:
            break
        if gone or time.monotonic() > deadline_s:
            control.withdraw(place.local, number)
            raise CommandError(_silence(place, running, gone, timeout_s))
        time.sleep(POLL_S)
    if not answer.get("done"):
        raise CommandError(f"pipeline {place.name}: {answer.get('error')}")
    return answer


def _silence(place: Place, running: Holder, gone: bool, timeout_s: float) -> str:
    if gone:
        return f"the driver of {place.name} (process {running.pid}) ended without an answer; run it again to go on"
    return (
        f"the driver of {place.name} (process {running.pid} on {running.host}) did not answer within {timeout_s:g} s: an epoch may take "
        f"longer (--timeout), or it hangs (kill {running.pid}; running it again continues where it was)"
    )


def size_text(size_bytes: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} GiB"
