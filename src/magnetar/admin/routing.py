"""Paths to handlers: a tree of path segments. Fixed segments win over `{name}` ones, whatever the order of registration.

Segments are matched as they were sent and decoded afterwards, each for itself, so that an encoded slash stays inside its name.
Empty segments do not count: the C++ client sends `//admin/v2`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
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

SHAPES: Mapping[str, re.Pattern[str]] = {
    "bundle": re.compile(r"0[xX][0-9a-fA-F]+_0[xX][0-9a-fA-F]+"),
    "timestamp": re.compile(r"[0-9]+"),
}
"""Variables that only take segments of this form: an unknown path below a namespace is not taken for a bundle of it, nor the
`dispatchRate` of a subscription called `messageid` for a time. Anything else is 404, as in Pulsar."""

PATH_SHOWN_MAX = 200
"""Characters of an unknown path that its error repeats."""

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
    by_query: bool = False
    """The topic is named by the query's `topic` (complete or short), and counts as if the path named it."""
    scalable: bool = False
    """That may be `topic://`, which only names its segments."""

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
    takes: re.Pattern[str] | None = None
    """What the variable's segment looks like, as it was sent; anything if None."""
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
                node.takes = SHAPES.get(segment[1:-1])
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
        """As `find`, with the whole route. A fixed segment that leads to other methods only does not hide a variable."""
        segments = segments_of(raw_path)
        others: dict[str, object] = {}
        if len(segments) <= SEGMENTS_MAX:
            for node, values in _walk(self._root, segments, 0, ()):
                found = node.methods.get(method) or (node.methods.get("GET") if method == "HEAD" else None)
                if found is not None:
                    route, names = found
                    return route, {**route.fixed, **dict(zip(names, map(_decode, values), strict=True))}
                others.update(node.methods)
        if others:
            raise MethodNotAllowedError(allowed(others))
        raise NotFoundError(
            f"HTTP 404 Not Found: this server has no route {method} {raw_path[:PATH_SHOWN_MAX]}; "
            "GET /openapi.json lists those it has"
        )


def allowed(methods: Mapping[str, object]) -> str:
    """The value of an `Allow` header."""
    implied = ["OPTIONS", "HEAD"] if "GET" in methods else ["OPTIONS"]
    return ", ".join(sorted([*methods, *implied]))


def segments_of(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]


def _walk(
    node: _Node, segments: list[str], place: int, values: tuple[str, ...]
) -> Iterator[tuple[_Node, tuple[str, ...]]]:
    """The nodes with methods that a path leads to, and what its variables are there; fixed segments first."""
    if place == len(segments):
        if node.methods:
            yield node, values
        return
    segment = segments[place]
    fixed = node.fixed.get(segment)
    if fixed is not None:
        yield from _walk(fixed, segments, place + 1, values)
    if node.variable is not None and (node.takes is None or node.takes.fullmatch(segment)):
        yield from _walk(node.variable, segments, place + 1, (*values, segment))


def _decode(segment: str) -> str:
    """As Java's URLDecoder, which Pulsar's server and clients use: `+` is a space."""
    try:
        return unquote_plus(segment, errors="strict")
    except UnicodeDecodeError:
        raise BadRequestError("the path is not UTF-8 after percent-decoding") from None
