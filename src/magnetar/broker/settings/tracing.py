"""Settings of traces of single messages."""

from __future__ import annotations

from magnetar.base.settings import Settings, setting


class TracingSettings(Settings):
    """A part of a broker's settings."""

    trace_messages_per_s: int = setting(
        20,
        "traceMessagesPerSecond",
        "Messages of each tenant that are traced in a second, of those that ask for it by the property magnetar.trace; 0 traces none.",
        minimum=0,
        maximum=10_000,
        dynamic=True,
    )
    otel_exporter_otlp_endpoint: str = setting(
        "",
        "otelExporterOtlpEndpoint",
        "Address of an OpenTelemetry receiver that takes traces by OTLP over HTTP, as http://HOST:4318/v1/traces; traced messages become "
        "spans, also those with a sampled traceparent. Empty: none, and nothing of it is loaded. Needs magnetar[otel].",
    )
