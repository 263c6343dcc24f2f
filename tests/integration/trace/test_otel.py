"""Spans as an OpenTelemetry receiver gets them: a small HTTP server that decodes the official protobuf, the official SDK in the client."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pulsar
import pytest
from opentelemetry.propagate import inject
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from magnetar.testing.server import ServerProcess, ServerStartError
from tests.support.waiting import wait_until


class Receiver:
    """Keeps the spans that it was sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest()
                request.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
                for resource in request.resource_spans:
                    receiver.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1/traces"

    def of(self, trace_id: int) -> dict[str, Any]:
        """Spans by the first word of their name."""
        return {span.name.split(" ")[0]: span for span in self.spans if span.trace_id == trace_id.to_bytes(16, "big")}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def attributes_of(span: Any) -> dict[str, Any]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def test_spans_hang_below_the_span_of_the_sender(
    receiver: Receiver, start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client], topic: str
) -> None:
    server = start_server(otelExporterOtlpEndpoint=receiver.url)
    client = connect(server.service_url)
    consumer = client.subscribe(topic, "sub", consumer_name="c1")
    producer = client.create_producer(topic)
    properties: dict[str, str] = {}
    with TracerProvider(sampler=ALWAYS_ON).get_tracer("service").start_as_current_span("order") as own:
        inject(properties)
    sent = producer.send(b"x", properties=properties)
    consumer.acknowledge(consumer.receive(30_000))
    unsampled: dict[str, str] = {}
    with TracerProvider(sampler=ALWAYS_OFF).get_tracer("service").start_as_current_span("order"):
        inject(unsampled)
    producer.send(b"not sampled", properties=unsampled)
    wanted = {"publish", "journal", "dispatch", "ack"}
    spans = wait_until(lambda: (found := receiver.of(own.get_span_context().trace_id)).keys() >= wanted and found)
    parent = own.get_span_context().span_id.to_bytes(8, "big")
    assert {span.parent_span_id for span in spans.values()} == {parent}
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans.values())
    published, acknowledged = attributes_of(spans["publish"]), attributes_of(spans["ack"])
    assert published["messaging.system"] == "pulsar"
    assert published["messaging.operation.type"] == "send"
    assert published["messaging.destination.name"] == topic
    assert published["messaging.message.id"] == f"{sent.ledger_id()}:{sent.entry_id()}"
    assert acknowledged["messaging.destination.subscription.name"] == "sub"
    assert acknowledged["messaging.client.id"] == "c1"
    server.stop()  # what waits is sent before the end
    assert {span.trace_id for span in receiver.spans} == {own.get_span_context().trace_id.to_bytes(16, "big")}


def test_a_receiver_that_is_not_there_holds_nobody_up(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client], topic: str
) -> None:
    server = start_server(otelExporterOtlpEndpoint="http://127.0.0.1:9/v1/traces")
    producer = connect(server.service_url).create_producer(topic)
    for number in range(50):
        parent = f"00-{number + 1:032x}-{'1' * 16}-01"
        assert producer.send(b"x", properties={"traceparent": parent}).entry_id() == number
    assert "Traceback" not in server.log()


def test_an_endpoint_that_is_not_a_url_is_refused(start_server: Callable[..., ServerProcess]) -> None:
    with pytest.raises(ServerStartError, match="not a valid URL; write it as http://HOST:4318/v1/traces"):
        start_server(otelExporterOtlpEndpoint="collector:4317")


def test_nothing_of_it_is_loaded_unless_it_is_set() -> None:
    program = "import sys, magnetar.standalone, magnetar.processes.broker; print([m for m in sys.modules if 'opentelemetry' in m])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
