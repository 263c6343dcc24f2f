"""Server-sent events: the parts of a page that change, rendered here and sent when they differ from what was sent last."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from magnetar.admin.console.errors import RefusedError

TICK_S: Final = 2.0
"""Between two looks at the numbers."""

FOLLOWED_S: Final = 600.0
"""A stream ends after this long, and the browser begins another: whoever went without a word is forgotten."""

FOLLOWERS_MAX: Final = 32
"""Pages of one server that are followed live at a time; further ones stay as they were loaded, and say so."""

Render = Callable[[], Awaitable[Mapping[str, str]]]


class Followers:
    """The streams of one server. Without one nothing is computed."""

    def __init__(self) -> None:
        self.count = 0


class LiveResponse(Response):
    """`render` makes the parts by name. RefusedError ends the stream with an event `gone`, whose text is the reason."""

    media_type = "text/event-stream"

    def __init__(self, followers: Followers, render: Render) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._followers = followers
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._followers.count += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._follow(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._followers.count -= 1

    async def _follow(self, send: Send) -> None:
        sent: dict[str, str] = {}
        until_s = monotonic() + FOLLOWED_S
        while monotonic() < until_s:
            try:
                parts = await self._render()
            except RefusedError as error:
                await send(_body(event("gone", str(error))))
                return
            changed = {name: text for name, text in parts.items() if sent.get(name) != text}
            sent |= changed
            # A comment where nothing has changed: writing it is how the server learns that the reader has left.
            await send(_body("".join(event(name, text) for name, text in changed.items()) or ": same\n\n"))
            await asyncio.sleep(TICK_S)


def _body(text: str) -> dict[str, object]:
    return {"type": "http.response.body", "body": text.encode("utf-8", "replace"), "more_body": True}


def event(name: str, text: str) -> str:
    """One event. A line break in the text is one of `data`, whichever kind it is."""
    return f"event: {name}\n" + "".join(f"data: {line}\n" for line in text.splitlines() or [""]) + "\n"
