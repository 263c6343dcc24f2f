"""What a page's function answers, and the row that says where the page is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from magnetar.admin.console.visit import Visit
from magnetar.admin.routing import Handler, Route
from magnetar.broker.auth.decide import Access


@dataclass(frozen=True, slots=True)
class Page:
    """A template with its values. Its blocks whose names begin with `live_` are sent again while somebody looks."""

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    crumbs: tuple[tuple[str, str], ...] = ()
    """(text, address) of the pages above this one."""
    status: int = 200


@dataclass(frozen=True, slots=True)
class Redirect:
    """After a form was done: an address, and a sentence that the page there shows."""

    to: str


PageFunction = Callable[[Visit], Awaitable[Page | Redirect]]


def page(method: str, path: str, function: PageFunction, access: Access = Access.AUTHENTICATED) -> Route:
    """A row below /console. The access is that of the page's frame; what it shows is asked of the admin API, route by route."""
    return Route(method, f"/console{path}", access, cast("Handler", function))
