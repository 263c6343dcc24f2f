"""Templates and their filters. Everything that comes from outside is escaped, and shown without characters that reorder or hide text."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import Response

from magnetar import __version__
from magnetar.admin.console import pictures
from magnetar.admin.console.page import Page
from magnetar.admin.console.visit import Visit, path_of, topic_page
from magnetar.base.printable import lines

HERE: Final = Path(__file__).parent
LIVE: Final = "live_"
KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Renderer:
    """Templates and static files are read once."""

    def __init__(self, cluster: str) -> None:
        self._files = {path.name: path.read_bytes() for path in (HERE / "static").iterdir() if path.suffix in KINDS}
        digest = hashlib.sha256(b"".join(self._files[name] for name in sorted(self._files))).hexdigest()[:12]
        self._environment = environment()
        self._environment.globals |= {"cluster": cluster, "version": __version__, "static_version": digest}
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    def page(self, page: Page, visit: Visit, *, with_login: bool) -> str:
        return self._environment.get_template(page.template).render(
            _values(page, visit) | {"with_login": with_login, "form_token": visit.session.form_token}
        )

    def live_parts(self, page: Page, visit: Visit) -> Mapping[str, str]:
        """The blocks that are followed, by their names without the prefix."""
        template = self._environment.get_template(page.template)
        values = _values(page, visit)
        return {
            name.removeprefix(LIVE): "".join(block(template.new_context(values)))
            for name, block in template.blocks.items()
            if name.startswith(LIVE)
        }

    def static(self, name: str) -> Response:
        data = self._files.get(name)
        if data is None:
            return Response("no such file", 404, media_type="text/plain")
        kind = KINDS[Path(name).suffix]
        return Response(data, media_type=kind, headers={"Cache-Control": "public, max-age=31536000, immutable"})


def _values(page: Page, visit: Visit) -> dict[str, Any]:
    return {
        **page.values,
        "title": page.title,
        "crumbs": page.crumbs,
        "role": visit.principal.role if visit.principal is not None else "",
        "here": visit.request.scope["raw_path"].decode("ascii", "replace"),
        "done": visit.query("done"),
    }


def environment() -> Environment:
    """With every filter, and without anything that could be looked up outside of the package."""
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_shown,
    )
    found.filters |= {
        "bytes": as_bytes,
        "count": as_count,
        "rate": as_rate,
        "time": as_time,
        "seg": lambda value: path_of(value)[1:],
    }
    found.globals |= {"topic_page": topic_page, "path_of": path_of, "pictures": pictures}
    found.globals["ui"] = found.get_template("ui.html").module
    return found


def _shown(value: Any) -> Any:
    return lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def as_bytes(size: float) -> str:
    """`1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def as_count(number: float) -> str:
    """`12,345`."""
    return f"{number:,.0f}"


def as_rate(number: float) -> str:
    """A number a second."""
    return f"{number:,.0f}" if number >= 100 or number == 0 else f"{number:.1f}" if number >= 1 else f"{number:.2g}"


def as_time(milliseconds: float) -> str:
    """In UTC; a dash for none."""
    if milliseconds <= 0 or milliseconds >= 253_402_300_800_000:
        return "–"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(milliseconds / 1000)) + " UTC"
