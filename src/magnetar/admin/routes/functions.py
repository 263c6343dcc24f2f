"""Pulsar Functions: a broker without a functions worker says so, in the way that tools understand (503)."""

from __future__ import annotations

from starlette.responses import Response

from magnetar.admin.call import Call
from magnetar.admin.errors import UnhealthyError
from magnetar.admin.operation import documented
from magnetar.admin.routes.paths import ADMIN
from magnetar.admin.routing import Route
from magnetar.broker.auth.decide import Access


@documented(always_fails=True)
async def no_worker(call: Call) -> Response:
    """Always 503."""
    raise UnhealthyError("Function worker service is not done initializing: there is no functions worker here")


ROUTES = (
    *(
        Route("GET", f"{ADMIN}/worker/{leaf}", Access.AUTHENTICATED, no_worker)
        for leaf in ("cluster", "cluster/leader", "assignments", "cluster/leader/ready")
    ),
    *(
        Route("GET", f"/admin/v3/{kind}{leaf}", Access.AUTHENTICATED, no_worker)
        for kind in ("functions", "sources", "sinks")
        for leaf in ("", "/{tenant}/{namespace}")
    ),
)
