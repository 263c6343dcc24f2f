"""The route table: precedence, decoding, refusals."""

from __future__ import annotations

import pytest

from magnetar.admin.errors import BadRequestError, MethodNotAllowedError, NotFoundError
from magnetar.admin.routes import all_routes
from magnetar.admin.routing import SHAPES, Handler, Route, RouteTable
from magnetar.broker.auth.decide import Access


def handler(name: str) -> Handler:
    async def handle(call: object) -> None: ...

    handle.__name__ = name
    return handle  # type: ignore[return-value]  # only its name is looked at


@pytest.fixture
def table() -> RouteTable:
    table = RouteTable()
    for method, path in (
        ("GET", "/a/{x}/{y}"),
        ("GET", "/a/{x}/fixed"),
        ("PUT", "/a/{x}/{y}"),
        ("GET", "/a/b/c/{z}"),
        ("GET", "/a/{x}/{y}/{w}"),
    ):
        table.add(Route(method, path, Access.TENANT, handler(f"{method} {path}"), {"implied": "1"}))
    return table


@pytest.mark.parametrize(
    ("path", "name", "params"),
    [
        ("/a/1/2", "GET /a/{x}/{y}", {"x": "1", "y": "2"}),
        ("/a/1/fixed", "GET /a/{x}/fixed", {"x": "1"}),
        ("//a///1/2/", "GET /a/{x}/{y}", {"x": "1", "y": "2"}),
        ("/a/b/2", "GET /a/{x}/{y}", {"x": "b", "y": "2"}),
        ("/a/b/c/d", "GET /a/b/c/{z}", {"z": "d"}),
        ("/a/b/x/d", "GET /a/{x}/{y}/{w}", {"x": "b", "y": "x", "w": "d"}),
        ("/a/x%2Fy/%C3%BC+%2B", "GET /a/{x}/{y}", {"x": "x/y", "y": "ü +"}),
        ("/a/%2e%2e/%252F", "GET /a/{x}/{y}", {"x": "..", "y": "%2F"}),
    ],
)
def test_found(table: RouteTable, path: str, name: str, params: dict[str, str]) -> None:
    found, values = table.find("GET", path)
    assert found.__name__ == name
    assert values == {"implied": "1", **params}


def test_head_is_get(table: RouteTable) -> None:
    assert table.find("HEAD", "/a/1/2") == table.find("GET", "/a/1/2")


@pytest.mark.parametrize("path", ["/", "/a", "/a/1", "/b/1/2", "/a/" + "x/" * 10_000])
def test_unknown_paths(table: RouteTable, path: str) -> None:
    with pytest.raises(NotFoundError):
        table.find("GET", path)


def test_methods_of_the_path_are_named(table: RouteTable) -> None:
    with pytest.raises(MethodNotAllowedError) as caught:
        table.find("DELETE", "/a/1/2")
    assert caught.value.allowed == "GET, HEAD, OPTIONS, PUT"


def test_bytes_that_are_no_text(table: RouteTable) -> None:
    with pytest.raises(BadRequestError):
        table.find("GET", "/a/%ff/x")


def test_a_route_is_registered_once() -> None:
    table = RouteTable()
    for route in all_routes():
        table.add(route)
    with pytest.raises(AssertionError, match="twice"):
        table.add(next(all_routes()))


def test_a_fixed_segment_hides_a_variable_from_its_own_methods_only(table: RouteTable) -> None:
    """A role or subscription may be called like a part of a path."""
    table.add(Route("DELETE", "/a/{x}/{y}", Access.TENANT, handler("DELETE /a/{x}/{y}")))
    found, params = table.find("DELETE", "/a/1/fixed")
    assert (found.__name__, params["y"]) == ("DELETE /a/{x}/{y}", "fixed")
    with pytest.raises(MethodNotAllowedError) as refused:
        table.find("POST", "/a/1/fixed")
    assert refused.value.allowed == "DELETE, GET, HEAD, OPTIONS, PUT"


SHAPED = {"{bundle}": "0x0_0x1", "{timestamp}": "7"}
"""Variables that are no names, and a value of theirs: words do not fit there."""


def test_every_route_takes_names_that_are_parts_of_other_routes() -> None:
    """What still leads elsewhere are names that Pulsar's own paths give two meanings to: of a cluster, an isolation policy, a bundle;
    and those of `TWO_MEANINGS`."""
    assert {name[1:-1] for name in SHAPED} == set(SHAPES)
    table = RouteTable()
    routes = list(all_routes())
    for route in routes:
        table.add(route)
    words = sorted({part for route in routes for part in route.path.split("/") if part and not part.startswith("{")})
    ambiguous = set()
    for route in routes:
        parts = route.path.split("/")
        for place, part in enumerate(parts):
            if not part.startswith("{") or part in SHAPED:
                continue
            for word in words:
                filled = [SHAPED.get(each, "x") if each.startswith("{") else each for each in parts]
                filled[place] = word
                found, _ = table.match(route.method, "/".join(filled))
                if found is not route:
                    ambiguous.add((route.method, part, word))
    assert ambiguous == {
        *(("GET", "{cluster}", word) for word in CLUSTER_WORDS),
        ("GET", "{policyName}", "brokers"),
        *TWO_MEANINGS,
    }


def test_the_rate_of_a_subscription_called_messageid_is_not_taken_for_a_time() -> None:
    table = RouteTable()
    for route in all_routes():
        table.add(route)
    topic = "/admin/v2/persistent/t/ns/one"
    route, params = table.match("GET", f"{topic}/messageid/dispatchRate")
    assert (route.path.rpartition("/")[2], params["subscription"]) == ("dispatchRate", "messageid")
    route, params = table.match("GET", f"{topic}/messageid/1700000000000")
    assert params["timestamp"] == "1700000000000"
    with pytest.raises(NotFoundError):
        table.match("GET", f"{topic}/messageid/yesterday")


CLUSTER_WORDS = (
    "backlog-quota-check",
    "configuration",
    "health",
    "internal-configuration",
    "leaderBroker",
    "ready",
    "version",
)
"""`/admin/v2/brokers/{cluster}` has these beside it."""

TWO_MEANINGS = (
    ("GET", "{namespace}", "antiAffinity"),
    ("DELETE", "{subscription}", "subscription"),
    ("DELETE", "{subscription}", "permissions"),
    ("POST", "{subscription}", "permissions"),
)
"""Two names make up the path in one of its meanings, and either could be the word of the other: whichever wins hides some names.

- `GET namespaces/{cluster}/antiAffinity/{group}` hides what is read below a namespace called `antiAffinity`; the other way around it
  would hide every group that is called like a policy.
- `{topic}/{subscription}/dispatchRate` yields to `{topic}/subscription/{subscription}`: the request to delete a subscription called
  `dispatchRate` does that. The rate of a subscription called `subscription` is unset by a POST of `null`.
- It yields to `{topic}/permissions/{role}` as well: to take rights from a role called `dispatchRate` must never be answered with 204
  and do something else. A POST of a rate is no list of actions, and is refused there.
"""
