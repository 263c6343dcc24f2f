"""Options that several groups of pulsar-admin share, and what they print: names, and documents of the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
import msgspec

from magnetar.admin.documents.topics import MessageId
from magnetar.cli.admin.http import admin_url_option
from magnetar.cli.output import emit, emit_record, json_option, output_options, print_json

F = TypeVar("F", bound=Callable[..., Any])

LATEST, EARLIEST = "latest", "earliest"


def common(function: F) -> F:
    """`--admin-url` with the credentials, and `--json`: of commands that change something or print one value or text."""
    return admin_url_option(json_option(function))


def shown(function: F) -> F:
    """`--admin-url` with the credentials, and how what the server answers is printed: `--json`, `--table`."""
    return admin_url_option(output_options(function))


def accepted(*names: str, help: str, **attributes: Any) -> Callable[[F], F]:
    """An option of pulsar-admin's that is taken and not used; `help` says what is done in any case."""
    return click.option(*names, expose_value=False, help=f"Accepted as in pulsar-admin. {help}", **attributes)


class MessageIdType(click.ParamType):  # type: ignore[type-arg]  # generic in the stubs, not in every click
    """`ledger:entry`, as `topics stats-internal` and receipts show them, or `earliest` or `latest`."""

    name = "message id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> MessageId:
        if isinstance(value, MessageId):
            return value
        if value == EARLIEST:
            return MessageId(ledger_id=-1, entry_id=-1)
        if value == LATEST:
            return MessageId(ledger_id=2**63 - 1, entry_id=2**63 - 1)
        parts = str(value).split(":")
        if len(parts) < 2 or not all(part.removeprefix("-").isdigit() for part in parts[:2]):
            self.fail(f"{value!r} is not a message id; write ledger:entry, earliest or latest", param, ctx)
        return MessageId(ledger_id=int(parts[0]), entry_id=int(parts[1]))


MESSAGE_ID = MessageIdType()

force_option = click.option("-f", "--force", is_flag=True, help="Delete it even while it is in use.")
subscription_option = click.option("-s", "--subscription", required=True, help="Name of the subscription.")
properties_option = click.option(
    "-p", "--properties", "--property", "properties", multiple=True, help="name=value; may be given several times."
)


def show_names(names: Iterable[str], as_json: bool, column: str, title: str = "") -> None:
    """One to a line, sorted."""
    found = sorted(names)
    if as_json:
        print_json(found)
    else:
        emit([{column: name} for name in found], as_json=False, title=title)


def show_document(document: Any, as_json: bool, title: str = "") -> None:
    """A document of the server, a line for each of its fields; what is nested stays JSON."""
    value = msgspec.to_builtins(document)
    if as_json:
        print_json(value)
    elif isinstance(value, dict):
        emit_record({name: _flat(item) for name, item in value.items()}, as_json=False, title=title)
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        emit([{name: _flat(item) for name, item in row.items()} for row in value], as_json=False, title=title)
    else:
        click.echo("" if value is None else value if isinstance(value, str) else json.dumps(value))


def show_value(value: Any, as_json: bool, name: str) -> None:
    """One value: bare, or as a JSON object."""
    if as_json:
        print_json({name: value})
    else:
        click.echo(value)


def _flat(value: Any) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
