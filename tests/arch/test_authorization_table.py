"""Nothing is served without a declared access: every command has its row, every route its right."""

from __future__ import annotations

import re
from typing import Any

import pytest

from magnetar.admin import app
from magnetar.admin.routes import all_routes
from magnetar.admin.routing import Route, RouteTable
from magnetar.broker.auth.decide import Access
from magnetar.broker.auth.table import COMMANDS
from magnetar.broker.connection import routes
from magnetar.broker.connection.routes import guarded
from magnetar.broker.connection.session import Handler
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand

GRANTED_BY_DESIGN = {"/status.html", "/admin/v2/brokers/ready", "/healthz", "/readyz"}
SERVER_WIDE = tuple(f"/admin/v2/{noun}" for noun in ("clusters", "tenants", "brokers", "resource-quotas", "segments"))
ROUTES = {(route.method, route.template): route.access for route in all_routes()}
ON_THE_MESSAGE_PATH = ("SEND", "FLOW", "ACK", "REDELIVER_UNACKNOWLEDGED_MESSAGES")


async def handle(call: object) -> Any: ...


def test_every_command_has_a_row_and_every_row_a_command() -> None:
    live = {BaseCommand.Type.Name(kind) for kind in routes.ROUTES}  # type: ignore[arg-type]  # keys are plain ints
    assert live == set(COMMANDS)


def test_every_route_declares_its_access() -> None:
    """Once: both domains of a route have the same."""
    assert [f"{route.method} {route.path}" for route in all_routes() if not isinstance(route.access, Access)] == []
    assert all(ROUTES[(route.method, route.template)] is route.access for route in all_routes())


@pytest.mark.parametrize("access", [None, "", "any role", handle, Access.OWN])
def test_a_route_without_access_does_not_start(access: Any) -> None:
    with pytest.raises(ValueError, match="declares no access"):
        RouteTable().add(Route("GET", "/admin/v2/new", access, handle))
    with pytest.raises(TypeError):
        Route("GET", "/admin/v2/new", handle)  # type: ignore[call-arg,arg-type]  # as somebody forgets it


def test_no_route_is_served_that_is_not_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The application itself refuses to start."""
    monkeypatch.setattr(app, "all_routes", lambda: [*all_routes(), Route("GET", "/new", None, handle)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="GET /new declares no access"):
        app.AdminApp(None)  # type: ignore[arg-type]  # the routes come first


def test_what_is_open_to_strangers_can_be_counted() -> None:
    assert {path for (_, path), access in ROUTES.items() if access is Access.OPEN} == GRANTED_BY_DESIGN
    assert Access.OWN not in ROUTES.values()


def test_an_unknown_command_is_not_served() -> None:
    live: dict[int, Handler] = {BaseCommand.WATCH_TOPIC_LIST: next(iter(routes.ROUTES.values()))}
    assert "WATCH_TOPIC_LIST" not in COMMANDS
    assert guarded(live) == {}


def test_messages_pay_nothing() -> None:
    """The handlers of the message path are the very same objects with and without authorization."""
    behind = guarded(routes.ROUTES)
    for name in ON_THE_MESSAGE_PATH:
        kind = BaseCommand.Type.Value(name)
        assert behind[kind] is routes.ROUTES[kind]


def test_rows_that_change_something_take_more_than_a_look() -> None:
    """Held apart from the rows themselves: a row that is weakened by mistake fails here (CVE-2024-28098)."""
    for (method, path), access in ROUTES.items():
        if method == "GET":
            continue
        place = f"{method} {path}"
        if path.startswith(SERVER_WIDE) or path.endswith(("{namespace}/unload", "/bookieAffinity", "/drained")):
            assert access is Access.SUPERUSER, place
        elif "/{topic}/clusters/{cluster}/" in path:
            assert access is Access.REPLICATE, place
        elif re.search("/subscriptions?/{subscription}", path) and "/permissions/" not in path:
            assert access is Access.CONSUME, place
        elif "backlogSize" in path:
            assert access is Access.CONSUME, place  # a question in the form of a PUT
        elif path.endswith("/{topic}/messages"):
            assert access is Access.PRODUCE, place
        elif path.startswith("/topics/"):
            assert access is Access.PRODUCE, place  # a message
        elif path.startswith("/admin/v2/schemas"):
            assert access in (Access.PRODUCE, Access.TENANT), place
        elif path == "/admin/v2/pipelines/{pipeline}":
            # its topics are in the body: the handler asks for each of them, which tests/integration/security/test_explain.py holds
            assert access is Access.SOMEWHERE, place
        else:
            assert access in (Access.TENANT, Access.SUPERUSER), place


def test_messages_are_read_and_written_by_those_who_may() -> None:
    producing = ("PRODUCER", "GET_OR_CREATE_SCHEMA")
    consuming = ("SUBSCRIBE", "SEEK", "UNSUBSCRIBE", "GET_LAST_MESSAGE_ID", "CONSUMER_STATS")
    assert all(COMMANDS[name] is Access.PRODUCE for name in producing)
    assert all(COMMANDS[name] is Access.CONSUME for name in consuming)
    assert {name for name, access in COMMANDS.items() if access is Access.OPEN} == {
        "CONNECT",
        "AUTH_RESPONSE",
        "PING",
        "PONG",
    }
    payload = {path for (_, path) in ROUTES if "/entry/" in path or "/position/" in path}
    assert payload
    assert all(ROUTES[("GET", path)] is Access.CONSUME for path in payload)
