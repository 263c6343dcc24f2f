"""What is kept of traces is bounded for each message, each tenant and all of them."""

from __future__ import annotations

from itertools import count

import pytest

from magnetar.base.limits import TRACE_EVENTS_MAX, TRACE_TENANTS_MAX, TRACES_MAX, TRACES_PER_TENANT_MAX
from magnetar.broker.tracing.trace import Asked, Kind, Origin, Trace, asked_of
from magnetar.broker.tracing.traces import Traces
from magnetar.wire.pulsar.PulsarApi_pb2 import KeyValue

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def now_ms(self) -> int:
        return round(self.s * 1000)

    def monotonic_s(self) -> float:
        return self.s


def origin(tenant: str) -> Origin:
    return Origin(f"persistent://{tenant}/ns/topic", tenant, None, "producer", "/1.2.3.4:5", 0, 1, 100)


def new_traces(clock: Clock, per_s: int = 10) -> Traces:
    numbers = count()
    return Traces(clock, lambda: f"id-{next(numbers)}", lambda: per_s)


def begin(traces: Traces, tenant: str, trace_id: str = "") -> Trace | None:
    return traces.begin(Asked(trace_id, False, ""), origin(tenant))


def test_a_second_has_so_many_traces_of_each_tenant() -> None:
    clock = Clock()
    traces = new_traces(clock)
    assert sum(begin(traces, "greedy") is not None for _ in range(100)) == 10
    assert begin(traces, "modest") is not None
    assert traces.refused == 90
    clock.s += 0.5
    assert sum(begin(traces, "greedy") is not None for _ in range(100)) == 5
    assert begin(new_traces(clock, per_s=0), "any") is None


def test_a_tenant_pushes_out_its_own_traces_only() -> None:
    traces = new_traces(Clock(), per_s=10_000)
    begin(traces, "modest", "kept")
    for _ in range(10 * TRACES_MAX):
        begin(traces, "greedy")
    assert [each.trace_id for each in traces.of("modest", origin("modest").topic)] == ["kept"]
    assert len(traces.of("greedy", origin("greedy").topic)) == TRACES_PER_TENANT_MAX
    for tenant in range(3 * TRACE_TENANTS_MAX):
        begin(traces, f"t{tenant}")
    assert traces.kept <= TRACES_MAX
    assert traces.kept == sum(len(traces.of(f"t{n}", origin(f"t{n}").topic)) for n in range(3 * TRACE_TENANTS_MAX))


def test_events_of_a_message_are_bounded_and_so_are_its_spans() -> None:
    trace = begin(new_traces(Clock()), "t")
    assert trace is not None
    exported: list[Kind] = []
    trace.noted = lambda _, event: exported.append(event.kind)
    for _ in range(1000):
        trace.note(Kind.DELIVERED, "x" * 10_000, consumer="c" * 10_000)
    assert len(trace.events) == len(exported) == TRACE_EVENTS_MAX
    assert trace.left_out == 1000 - TRACE_EVENTS_MAX
    assert max(len(each) for each in trace.events[0][2:]) <= 400


@pytest.mark.parametrize(
    ("properties", "exporting", "expected"),
    [
        ({}, True, None),
        ({"magnetar.trace": "order-1"}, False, Asked("order-1", False, "")),
        ({"magnetar.trace": "<script>"}, False, Asked("", False, "")),
        ({"magnetar.trace.only": ""}, False, Asked("", True, "")),
        ({"magnetar.trace.only": " FALSE "}, False, None),
        ({"traceparent": PARENT}, False, None),
        ({"traceparent": PARENT}, True, Asked("a" * 32, False, PARENT)),
        ({"traceparent": PARENT[:-1] + "0"}, True, None),
        ({"traceparent": "00-" + "0" * 32 + "-" + "b" * 16 + "-01"}, True, None),
        ({"traceparent": "ff" + PARENT[2:]}, True, None),
        ({"traceparent": PARENT + "x"}, True, None),
        ({"traceparent": PARENT, "magnetar.trace": "own"}, True, Asked("own", False, PARENT)),
    ],
)
def test_what_properties_ask_for(properties: dict[str, str], exporting: bool, expected: Asked | None) -> None:
    assert asked_of([KeyValue(key=key, value=value) for key, value in properties.items()], exporting) == expected
