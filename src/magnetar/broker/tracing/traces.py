"""The traces that one broker keeps: bounded in rate and number for each tenant, so that nobody's traces push out everybody's."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Protocol

from magnetar.base.clock import Clock
from magnetar.base.limits import TRACE_TENANTS_MAX, TRACES_MAX, TRACES_PER_TENANT_MAX
from magnetar.broker.rate_limits import TokenBucket
from magnetar.broker.tracing.trace import (
    LOOK_FOR_SPANS,
    LOOK_FOR_TRACES,
    Asked,
    Event,
    Origin,
    Pair,
    Trace,
    asked_of,
)


class Export(Protocol):
    """Where spans go."""

    def noted(self, trace: Trace, event: Event) -> None: ...

    def close(self) -> None: ...


class _OfTenant:
    __slots__ = ("bucket", "kept")

    def __init__(self, per_s: int, now_s: float) -> None:
        self.bucket = TokenBucket(per_s, 1.0, now_s)
        self.kept: deque[Trace] = deque()


class Traces:
    """`per_s`: traces of each tenant in a second; 0: none are made, and messages that ask for one are like others."""

    def __init__(self, clock: Clock, new_id: Callable[[], str], per_s: Callable[[], int]) -> None:
        self._clock = clock
        self._new_id = new_id
        self._per_s = per_s
        self._tenants: OrderedDict[str, _OfTenant] = OrderedDict()
        self._export: Export | None = None
        self.looks_for = LOOK_FOR_TRACES
        """See `TRACING_KEYS`."""
        self._count = 0
        self.made = 0
        self.refused = 0
        """Messages that asked for a trace above the rate of their tenant, and were treated like others."""

    def export_to(self, export: Export) -> None:
        """From now on."""
        self._export = export
        self.looks_for |= LOOK_FOR_SPANS

    async def close(self) -> None:
        """What is exported leaves. Sending it is the SDK's, which blocks: not this thread."""
        if self._export is not None:
            await asyncio.to_thread(self._export.close)

    def asked(self, properties: Iterable[Pair]) -> Asked | None:
        return asked_of(properties, self._export is not None)

    def begin(self, asked: Asked, origin: Origin) -> Trace | None:
        """None above the tenant's rate."""
        now_s, per_s = self._clock.monotonic_s(), self._per_s()
        of_tenant = self._of(origin.tenant, per_s, now_s)
        if of_tenant is None or of_tenant.bucket.available(now_s) < 1:
            self.refused += 1
            return None
        of_tenant.bucket.take(1, now_s)
        self.made += 1
        trace = Trace(asked.trace_id or self._new_id(), asked, origin, self._clock.now_ms(), self._clock.monotonic_s)
        if self._export is not None:
            trace.noted = self._export.noted
        of_tenant.kept.append(trace)
        self._count += 1
        if len(of_tenant.kept) > TRACES_PER_TENANT_MAX:
            self._forget(of_tenant)
        elif self._count > TRACES_MAX:
            self._forget(max(self._tenants.values(), key=lambda each: len(each.kept)))
        return trace

    def _of(self, tenant: str, per_s: int, now_s: float) -> _OfTenant | None:
        if per_s <= 0:
            return None
        of_tenant = self._tenants.get(tenant)
        if of_tenant is None:
            of_tenant = self._tenants[tenant] = _OfTenant(per_s, now_s)
            if len(self._tenants) > TRACE_TENANTS_MAX:
                _, forgotten = self._tenants.popitem(last=False)
                self._count -= len(forgotten.kept)
        self._tenants.move_to_end(tenant)
        of_tenant.bucket.set_rate(per_s, 1.0, now_s)
        return of_tenant

    def _forget(self, of_tenant: _OfTenant) -> None:
        of_tenant.kept.popleft()
        self._count -= 1

    def of(self, tenant: str, topic: str) -> list[Trace]:
        """Those of one topic, the newest first."""
        of_tenant = self._tenants.get(tenant)
        if of_tenant is None:
            return []
        return [trace for trace in reversed(of_tenant.kept) if trace.origin.topic == topic]

    @property
    def kept(self) -> int:
        return self._count
