"""One HTTP request as the parser finds it, and what its head may not say."""

from __future__ import annotations

import asyncio
from typing import Final

UPGRADE: Final = "magnetar.upgrade"
"""Where a request that asks for another protocol finds what answers it with 101 and makes a WebSocket for a handler."""


class HttpRequest:
    """What the parser has found of one request, and how far its answer is."""

    __slots__ = (
        "answered",
        "body",
        "body_bytes",
        "changed",
        "chunked",
        "complete",
        "expects_continue",
        "headers",
        "keep_alive",
        "method",
        "started",
        "target",
        "upgrades",
        "version",
    )

    def __init__(self) -> None:
        self.target = b""
        self.method = ""
        self.version = "1.1"
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = True
        self.expects_continue = False
        self.upgrades = False
        """The client waits for another protocol, and what it sends behind the request is of that."""
        self.body: list[bytes] = []
        self.body_bytes = 0
        self.complete = False
        """Its body has arrived."""
        self.changed = asyncio.Event()
        """More of the body, or the client has left."""
        self.started = False
        """The head of the answer is written."""
        self.answered = False
        self.chunked = False

    def values(self, name: bytes) -> list[bytes]:
        return [value for each, value in self.headers if each == name]

    def text(self, name: bytes) -> str | None:
        """The value of the first header of this name."""
        return next((value.decode("latin-1") for value in self.values(name)), None)


def check_head(version: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """What the parser takes although two servers could understand two things. Raises ValueError."""
    names = [name for name, _ in headers]
    if version not in ("1.0", "1.1"):
        raise ValueError(f"HTTP/{version} is unsupported; use HTTP/1.1")
    if names.count(b"content-length") > 1:
        raise ValueError("two Content-Length headers")
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            raise ValueError("Content-Length beside Transfer-Encoding")
        if [value.lower() for name, value in headers if name == b"transfer-encoding"] != [b"chunked"]:
            raise ValueError("the only Transfer-Encoding is chunked")
        if version == "1.0":
            raise ValueError("HTTP/1.0 has no Transfer-Encoding")
    hosts = names.count(b"host")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise ValueError("exactly one Host header is needed")
    if not target.startswith(b"/") and target != b"*":
        raise ValueError("the target must be a path: this server is not a proxy")
    if any(not 0x21 <= byte <= 0x7E for byte in target):
        raise ValueError("the path has characters that must be percent-encoded")
