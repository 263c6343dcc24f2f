"""The API's own description, for tools and for people."""

from __future__ import annotations

import html
import json
from functools import cache
from typing import Any

from starlette.responses import Response

from magnetar.admin.call import Call
from magnetar.admin.openapi import document
from magnetar.admin.operation import JSON, documented
from magnetar.admin.routing import Route
from magnetar.broker.auth.decide import Access

HTML = "text/html"


@documented("This description, OpenAPI 3.1.", answer=dict[str, Any])
async def as_openapi(call: Call) -> Response:
    return Response(_bytes(), media_type=JSON)


@documented("The same to be read; needs nothing from elsewhere.", answer=str, media=HTML)
async def as_page(call: Call) -> Response:
    return Response(
        _page(), media_type=HTML, headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    )


@cache
def _document() -> dict[str, Any]:
    from magnetar.admin.routes import all_routes

    return document(all_routes())


@cache
def _bytes() -> bytes:
    return json.dumps(_document(), separators=(",", ":")).encode()


STYLE = "body{font:15px sans-serif;max-width:60em;margin:2em auto}code{font-weight:bold}dt{margin-top:.8em}"


@cache
def _page() -> str:
    found = _document()
    by_tag: dict[str, list[str]] = {}
    for path, methods in found["paths"].items():
        for method, about in methods.items():
            where = f"<dt><code>{method.upper()} {html.escape(path)}</code></dt>"
            text = html.escape(f"{about['summary']} {about['description']}")
            asked = ", ".join(item["name"] for item in about["parameters"] if item["in"] == "query")
            query = f"<br>Query: {html.escape(asked)}" if asked else ""
            by_tag.setdefault(about["tags"][0], []).append(f"{where}<dd>{text}{query}</dd>")
    parts = [
        f"<details><summary>{html.escape(tag)} ({len(rows)})</summary><dl>{''.join(rows)}</dl></details>"
        for tag, rows in sorted(by_tag.items())
    ]
    title = html.escape(found["info"]["title"])
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        f'<p>{html.escape(found["info"]["description"])} Machine-readable: <a href="/openapi.json">openapi.json</a>.</p>'
        + "".join(parts)
    )


ROUTES = (
    Route("GET", "/openapi.json", Access.AUTHENTICATED, as_openapi),
    Route("GET", "/docs", Access.AUTHENTICATED, as_page),
)
