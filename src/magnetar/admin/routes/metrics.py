"""`/metrics`, for Prometheus."""

from __future__ import annotations

from starlette.responses import Response, StreamingResponse

from magnetar.admin.call import Call
from magnetar.admin.metrics.exposition import CONTENT_TYPE, exposition
from magnetar.admin.operation import TEXT, documented
from magnetar.admin.routing import Route
from magnetar.broker.auth.decide import Access


@documented("Metrics in Prometheus' text format.", answer=str, media=TEXT, heavy=True)
async def metrics(call: Call) -> Response:
    return StreamingResponse(exposition(call.admin, call.pace), media_type=CONTENT_TYPE)


ROUTES = (Route("GET", "/metrics", Access.METRICS, metrics),)
