"""The authorization table and the live lists of commands and routes are the same set: nothing new is served without a row."""

from __future__ import annotations

from magnetar.admin.access import row_of
from magnetar.admin.routes import all_routes
from magnetar.broker.auth.decide import Access
from magnetar.broker.auth.table import COMMANDS, ROUTES
from magnetar.broker.connection import routes
from magnetar.broker.connection.routes import guarded
from magnetar.broker.connection.session import Handler
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand

GRANTED_BY_DESIGN = {"/status.html", "/admin/v2/brokers/ready"}
SERVER_WIDE = tuple(f"/admin/v2/{noun}" for noun in ("clusters", "tenants", "brokers", "resource-quotas"))
ON_THE_MESSAGE_PATH = ("SEND", "FLOW", "ACK", "REDELIVER_UNACKNOWLEDGED_MESSAGES")


def test_every_command_has_a_row_and_every_row_a_command() -> None:
    live = {BaseCommand.Type.Name(kind) for kind in routes.ROUTES}  # type: ignore[arg-type]  # keys are plain ints
    assert live == set(COMMANDS)


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    without = [f"{route.method} {route.path}" for route in all_routes() if row_of(route) is None]
    assert without == [], "add a row to magnetar/broker/auth/table.py: until then nobody may use these"
    live = {
        (route.method, route.path.replace(f"/{route.fixed.get('domain')}/", "/{domain}/", 1)) for route in all_routes()
    }
    assert set(ROUTES) - live == set()


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
        if path.startswith(SERVER_WIDE) or path.endswith(("{namespace}/unload", "/bookieAffinity")):
            assert access is Access.SUPERUSER, place
        elif "/subscription/{subscription}" in path and "/permissions/" not in path:
            assert access is Access.CONSUME, place
        elif "backlogSize" in path:
            assert access is Access.CONSUME, place  # a question in the form of a PUT
        elif path.startswith("/admin/v2/schemas"):
            assert access in (Access.PRODUCE, Access.TENANT), place
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
