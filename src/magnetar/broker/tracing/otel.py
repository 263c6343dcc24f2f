"""Traces as spans of OpenTelemetry, sent by its official SDK over OTLP. Imported only where `otelExporterOtlpEndpoint` is set.

A message that carries W3C trace context (`traceparent`) has its spans below the sender's span; another one's trace begins here. Spans are
made when they end, with the times that the trace has; the SDK sends them from a thread of its own, and drops them when its queue is full.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from magnetar import __version__
from magnetar.broker.tracing.trace import PARENT_PROPERTY, Event, Kind, Trace

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 5
"""Of one export: spans of a collector that does not answer are dropped."""

QUEUE_MAX: Final = 2048
"""Spans that wait for the next export: further ones are dropped."""

DELAY_MS: Final = 1000

_propagator = TraceContextTextMapPropagator()

SETTLED: Final[Mapping[Kind, str]] = {
    Kind.ACKNOWLEDGED: "ack",
    Kind.RETURNED: "nack",
    Kind.SKIPPED: "skip",
    Kind.VIEW_COMMITTED: "view commit",
}
"""How a delivery ends, as `messaging.operation.name`."""


class _Spans:
    """Of one message: when what is under way began (seconds after receipt), and the span that the others hang below."""

    __slots__ = ("attributes", "delivered", "parent", "sent_s", "stored_s")

    def __init__(self, trace: Trace) -> None:
        origin = trace.origin
        self.attributes: dict[str, str | int] = {
            "messaging.system": "pulsar",
            "messaging.destination.name": origin.topic,
            "messaging.message.body.size": origin.size_bytes,
            "messaging.batch.message_count": origin.messages,
            "magnetar.trace.id": trace.trace_id,
        }
        self.parent: SpanContext | None = None
        self.sent_s = 0.0
        self.stored_s = 0.0
        self.delivered: dict[tuple[str, str], float] = {}


class SpanExport:
    """Implements `Export`. `endpoint`: where an OTLP receiver takes traces over HTTP, with its path."""

    def __init__(self, endpoint: str, service_name: str, broker: str) -> None:
        resource = Resource.create(
            {"service.name": service_name, "service.version": __version__, "service.instance.id": broker}
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=TIMEOUT_S)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=QUEUE_MAX, schedule_delay_millis=DELAY_MS)
        )
        self._tracer = self._provider.get_tracer("magnetar", __version__)

    def close(self) -> None:
        """Sends what waits. Blocks for at most `TIMEOUT_S`."""
        self._provider.shutdown()

    def noted(self, trace: Trace, event: Event) -> None:
        try:
            self._noted(trace, event)
        except Exception:  # nothing that concerns a span may concern the message
            logger.exception("a span could not be made trace=%s event=%s", trace.trace_id, event.kind)

    def _noted(self, trace: Trace, event: Event) -> None:
        spans = trace.spans
        if not isinstance(spans, _Spans):
            spans = trace.spans = _Spans(trace)
        now_s, kind = event.after_s, event.kind
        if kind is Kind.SENT:
            spans.sent_s = now_s
        elif kind in (Kind.STORED, Kind.REFUSED, Kind.REPEATED, Kind.PASSED_ON):
            self._published(trace, spans, event)
        elif kind in (Kind.COPY, Kind.COPY_FAILED):
            attributes = {"server.address": event.bookie, "magnetar.bookie": event.bookie}
            self._end(
                trace,
                spans,
                "journal",
                spans.sent_s,
                now_s,
                SpanKind.CLIENT,
                attributes,
                failed=kind is Kind.COPY_FAILED,
            )
        elif kind is Kind.DELIVERED:
            spans.delivered[event.subscription, event.consumer] = now_s
            self._end(
                trace, spans, "dispatch", spans.stored_s, now_s, SpanKind.PRODUCER, _consumer(event, "dispatch", "send")
            )
        elif kind in SETTLED:
            began_s = spans.delivered.pop((event.subscription, event.consumer), spans.stored_s)
            operation = SETTLED[kind]
            self._end(trace, spans, operation, began_s, now_s, SpanKind.CONSUMER, _consumer(event, operation, "settle"))
        elif kind is Kind.REPLICATED:
            attributes = {"magnetar.cluster": event.cluster, "messaging.operation.name": "replicate"}
            self._end(trace, spans, "replicate", spans.stored_s, now_s, SpanKind.PRODUCER, attributes)

    def _published(self, trace: Trace, spans: _Spans, event: Event) -> None:
        spans.stored_s = event.after_s
        if trace.position is not None:
            spans.attributes["messaging.message.id"] = f"{trace.position.ledger_id}:{trace.position.entry_id}"
        attributes = {
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "client.address": trace.origin.address,
            "messaging.client.id": trace.origin.producer,
        }
        self._end(
            trace, spans, "publish", 0.0, event.after_s, SpanKind.SERVER, attributes, failed=event.kind is Kind.REFUSED,
            text=event.text,
        )  # fmt: skip

    def _end(
        self,
        trace: Trace,
        spans: _Spans,
        name: str,
        began_s: float,
        ended_s: float,
        kind: SpanKind,
        attributes: Mapping[str, str],
        *,
        failed: bool = False,
        text: str = "",
    ) -> None:
        carrier = {PARENT_PROPERTY: trace.asked.parent} if trace.asked.parent else {}
        context = _propagator.extract(carrier)
        if spans.parent is None and not carrier:
            root = self._tracer.start_span(
                f"trace {trace.origin.topic}", context, start_time=_ns(trace, 0.0), attributes=spans.attributes
            )
            root.end(_ns(trace, 0.0))
            spans.parent = root.get_span_context()
        if spans.parent is not None:
            context = api.set_span_in_context(api.NonRecordingSpan(spans.parent))
        span = self._tracer.start_span(
            f"{name} {trace.origin.topic}",
            context,
            kind=kind,
            start_time=_ns(trace, began_s),
            attributes={**spans.attributes, **attributes},
        )
        if failed:
            span.set_status(Status(StatusCode.ERROR, text or None))
        span.end(_ns(trace, ended_s))


def _consumer(event: Event, operation: str, kind: str) -> dict[str, str]:
    return {
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.subscription.name": event.subscription,
        "messaging.consumer.group.name": event.subscription,
        "messaging.client.id": event.consumer,
        "client.address": event.address,
    }


def _ns(trace: Trace, after_s: float) -> int:
    return trace.began_ms * 1_000_000 + round(after_s * 1e9)
