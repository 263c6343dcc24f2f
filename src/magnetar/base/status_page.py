"""The page at `/` of a process that has no console: what it is, its own addresses, and where the console is. Nothing is fetched for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

HEADERS: Final = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

NO_CONSOLE: Final = "<li>No broker is known here, so there is no console.</li>"


def status_page(title: str, facts: Mapping[str, object], own: Sequence[str], consoles: Mapping[str, str]) -> str:
    """`own`: paths of this process. `consoles`: address by name; those that are not of HTTP are left out."""
    rows = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items())
    paths = "".join(f'<li><a href="{escape(path)}">{escape(path)}</a></li>' for path in own)
    links = "".join(
        f'<li><a href="{escape(url)}">Console of {escape(name)}</a></li>'
        for name, url in consoles.items()
        if url.startswith(("http://", "https://"))
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title></head><body><main><h1>{escape(title)}</h1>'
        f"<dl>{rows}</dl><ul>{links or NO_CONSOLE}</ul><ul>{paths}</ul></main></body></html>\n"
    )
