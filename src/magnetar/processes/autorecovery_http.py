"""What auto-recovery tells over HTTP: metrics and health."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from magnetar.admin.metrics.exposition import CONTENT_TYPE
from magnetar.admin.metrics.families import families
from magnetar.admin.metrics.process import process_text
from magnetar.bookkeeper.autorecovery.statistics import AutoRecoveryStatistics


def autorecovery_families(statistics: AutoRecoveryStatistics) -> Iterator[str]:
    """`autorecovery_*`: every counter under its own name."""
    return families(((f"autorecovery_{name}", value) for name, value in asdict(statistics).items()), "")


def autorecovery_app(statistics: AutoRecoveryStatistics, is_connected: Callable[[], bool]) -> Starlette:
    """`is_connected`: True while it has a session with the metadata store, without which it neither sees nor repairs anything."""

    async def metrics(request: Request) -> Response:
        return Response("".join(autorecovery_families(statistics)) + process_text(), media_type=CONTENT_TYPE)

    async def health(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(request: Request) -> Response:
        if not is_connected():
            return PlainTextResponse("the metadata store cannot be reached\n", 503)
        return PlainTextResponse("ok\n")

    return Starlette(routes=[Route("/metrics", metrics), Route("/healthz", health), Route("/readyz", ready)])
