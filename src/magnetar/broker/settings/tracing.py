"""Settings of traces of single messages."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.base.settings import setting


@dataclass(frozen=True, kw_only=True)
class TracingSettings:
    """A part of a broker's settings."""

    trace_messages_per_s: int = setting(
        20,
        "traceMessagesPerSecond",
        "Messages of each tenant that are traced in a second, of those that ask for it by the property magnetar.trace; 0 traces none.",
        minimum=0,
        maximum=10_000,
        dynamic=True,
    )
