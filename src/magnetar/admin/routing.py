"""Paths to handlers: a tree of path segments. Fixed segments win over `{name}` ones, whatever the order of registration.

Segments are matched as they were sent and decoded afterwards, each for itself, so that an encoded slash stays inside its name.
Empty segments do not count: the C++ client sends `//admin/v2`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_plus

from magnetar.admin.errors import BadRequestError, MethodNotAllowedError, NotFoundError
from magnetar.broker.auth.decide import Access
from magnetar.broker.naming import DOMAINS

if TYPE_CHECKING:
    from starlette.responses import Response

    from magnetar.admin.call import Call

Handler = Callable[["Call"], Awaitable["Response"]]

ADMIN = "/admin/v2"
NAMESPACE = f"{ADMIN}/namespaces/{{tenant}}/{{namespace}}"

SEGMENTS_MAX = 32
"""Longer paths name nothing: 404."""


class Route(NamedTuple):
    """One row of a route module, and the only declaration of its method, its path and who may use it.

    `access` is enforced by `admin/app`, shown in the OpenAPI document, and held against what the typed client and the tests expect.
    `fixed` are parameters that the path implies.
    """

    method: str
    path: str
    access: Access
    handler: Handler
    fixed: Mapping[str, str] = {}

    @property
    def template(self) -> str:
        """The path with `{domain}` where it stands for both domains."""
        domain = self.fixed.get("domain")
        return self.path.replace(f"/{domain}/", "/{domain}/", 1) if domain else self.path


def both_domains(method: str, path: str, access: Access, handler: Handler) -> tuple[Route, ...]:
    """`path` below `/admin/v2/{persistent|non-persistent}/tenant/namespace`."""
    return tuple(
        Route(method, f"{ADMIN}/{domain}/{{tenant}}/{{namespace}}{path}", access, handler, {"domain": domain})
        for domain in DOMAINS
    )


@dataclass(slots=True)
class _Node:
    fixed: dict[str, _Node] = field(default_factory=dict)
    variable: _Node | None = None
    methods: dict[str, tuple[Route, tuple[str, ...]]] = field(default_factory=dict)


class RouteTable:
    """Filled once at start, then only read."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, route: Route) -> None:
        """Raises ValueError for a route that does not declare who may use it: the server does not start with one."""
        if not isinstance(route.access, Access) or route.access is Access.OWN:
            raise ValueError(f"{route.method} {route.path} declares no access; name one of Access in its Route")
        node = self._root
        names: list[str] = []
        for segment in segments_of(route.path):
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.variable = node.variable or _Node()
                node = node.variable
            else:
                node = node.fixed.setdefault(segment, _Node())
        assert route.method not in node.methods, f"{route.method} {route.path} is registered twice"
        node.methods[route.method] = (route, tuple(names))

    def find(self, method: str, raw_path: str) -> tuple[Handler, dict[str, str]]:
        """The handler and its decoded parameters. Raises NotFoundError, MethodNotAllowedError, BadRequestError."""
        route, params = self.match(method, raw_path)
        return route.handler, params

    def match(self, method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
        """As `find`, with the whole route."""
        segments = segments_of(raw_path)
        values: list[str] = []
        node = _walk(self._root, segments, 0, values) if len(segments) <= SEGMENTS_MAX else None
        if node is None:
            raise NotFoundError("HTTP 404 Not Found")
        found = node.methods.get(method) or (node.methods.get("GET") if method == "HEAD" else None)
        if found is None:
            raise MethodNotAllowedError(allowed(node.methods))
        route, names = found
        return route, {**route.fixed, **dict(zip(names, map(_decode, values), strict=True))}


def allowed(methods: Mapping[str, object]) -> str:
    """The value of an `Allow` header."""
    implied = ["OPTIONS", "HEAD"] if "GET" in methods else ["OPTIONS"]
    return ", ".join(sorted([*methods, *implied]))


def segments_of(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]


def _walk(node: _Node, segments: list[str], place: int, values: list[str]) -> _Node | None:
    if place == len(segments):
        return node if node.methods else None
    fixed = node.fixed.get(segments[place])
    if fixed is not None:
        found = _walk(fixed, segments, place + 1, values)
        if found is not None:
            return found
    if node.variable is None:
        return None
    values.append(segments[place])
    found = _walk(node.variable, segments, place + 1, values)
    if found is None:
        values.pop()
    return found


def _decode(segment: str) -> str:
    """As Java's URLDecoder, which Pulsar's server and clients use: `+` is a space."""
    try:
        return unquote_plus(segment, errors="strict")
    except UnicodeDecodeError:
        raise BadRequestError("the path is not UTF-8 after percent-decoding") from None
