"""What a bookie tells over HTTP: metrics, health, and the part of BookKeeper's bookie REST API that monitoring uses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from magnetar.admin.metrics.exposition import CONTENT_TYPE, process_text
from magnetar.admin.metrics.server import bookie_families
from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.bookkeeper.bookie.bookie import Bookie


def bookie_app(bookie: Bookie, scope: TaskScope, extra_metrics: Callable[[], str]) -> Starlette:
    """`scope` runs a garbage collection that was asked for."""

    async def metrics(request: Request) -> Response:
        families = "".join(bookie_families(bookie.statistics(), bookie=bookie.config.bookie_id))
        return Response(families + extra_metrics() + process_text(), media_type=CONTENT_TYPE)

    async def health(request: Request) -> Response:
        """A read-only bookie is healthy: it serves what it holds."""
        if bookie.failed is not None:
            return PlainTextResponse(f"the bookie failed: {bookie.failed}\n", 503)
        return PlainTextResponse("ok\n")

    async def heartbeat(request: Request) -> Response:
        return PlainTextResponse("OK\n")

    async def info(request: Request) -> Response:
        ledger_dir = {each.path: each for each in bookie.statistics().directories}[bookie.config.ledger_path]
        return _json({"freeSpace": ledger_dir.free_bytes, "totalSpace": ledger_dir.total_bytes})

    async def state(request: Request) -> Response:
        return _json(
            {
                "running": bookie.failed is None,
                "readOnly": bookie.read_only,
                "shuttingDown": False,
                "availableForHighPriorityWrites": bookie.failed is None and bookie.takes_high_priority,
            }
        )

    async def is_ready(request: Request) -> Response:
        if bookie.failed is not None or bookie.read_only:
            return PlainTextResponse("Bookie is not ready\n", 503)
        return PlainTextResponse("OK\n")

    async def collect_garbage(request: Request) -> Response:
        scope.spawn(bookie.collect_garbage(), "garbage on demand", REPORTED)
        return _json({"status": "started"})

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/healthz", health),
            Route("/heartbeat", heartbeat),
            Route("/api/v1/bookie/info", info),
            Route("/api/v1/bookie/state", state),
            Route("/api/v1/bookie/is_ready", is_ready),
            Route("/api/v1/bookie/gc", collect_garbage, methods=["PUT"]),
        ]
    )


def _json(value: dict[str, Any]) -> Response:
    return Response(json.dumps(value) + "\n", media_type="application/json")
