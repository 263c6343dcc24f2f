"""Options that several groups of pulsar-admin share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from magnetar.admin.topic_documents import MessageId
from magnetar.cli.admin_http import admin_url_option
from magnetar.cli.output import json_option

F = TypeVar("F", bound=Callable[..., Any])

LATEST, EARLIEST = "latest", "earliest"


def common(function: F) -> F:
    """`--admin-url` with the credentials, and `--json`."""
    return admin_url_option(json_option(function))


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

force_option = click.option("-f", "--force", is_flag=True, help="Even while it is in use.")
subscription_option = click.option("-s", "--subscription", required=True, help="Its name.")
properties_option = click.option(
    "-p", "--properties", "--property", "properties", multiple=True, help="name=value; may be given several times."
)
