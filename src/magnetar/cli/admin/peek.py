"""`magnetar topics peek`: look at a subscription's next messages without taking them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping

import click

from magnetar.admin.client.errors import NotFoundError
from magnetar.admin.client.http import Answer
from magnetar.base.printable import as_text
from magnetar.cli.admin.common import accepted
from magnetar.cli.admin.http import admin_url_option, connected
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit, output_options, print_json
from magnetar.wire.pulsar.batches import split
from magnetar.wire.pulsar.compression import PayloadError

PROPERTY_PREFIX = "x-pulsar-property-"


@click.command("peek")
@click.argument("topic")
@click.option("-s", "--subscription", required=True, help="Name of the subscription.")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of entries; a batch is one entry.",
)
@accepted("-ssm", "--show-server-marker", help="The server's own markers are never shown.")
@accepted("-til", "--transaction-isolation-level", help="Messages of open and aborted transactions are never shown.")
@admin_url_option
@output_options
def peek_command(topic: str, subscription: str, count: int, admin_url: str, as_json: bool) -> None:
    """Show the next messages of a subscription of TOPIC; nothing is acknowledged."""
    rows: list[dict[str, object]] = []
    with connected(admin_url) as admin:
        for position in range(1, count + 1):
            try:
                answer = admin.subscriptions.peek(topic, subscription, position)
            except NotFoundError:
                if not rows:
                    raise
                break  # fewer messages than asked for
            rows += messages_of(answer)
    if as_json:
        print_json(rows)
    else:
        emit(rows, as_json=False, title=f"{topic}, {subscription}")


def messages_of(answer: Answer) -> Iterator[dict[str, object]]:
    """The messages of one peeked entry; an encrypted batch is one row. Raises CommandError when its payload is damaged."""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    identifier = headers.get("x-pulsar-message-id", "")
    batch = int(headers.get("x-pulsar-num-batch-message", 0))
    if not batch or headers.get("x-pulsar-is-encrypted") == "true":
        yield row(identifier, headers.get("x-pulsar-partition-key", ""), properties_of(headers), answer.body)
        return
    try:
        messages = split(answer.body, batch)
    except PayloadError as error:
        raise CommandError(f"{identifier}: {error}") from error
    for index, (metadata, data) in enumerate(messages):
        properties = {as_text(pair.key): as_text(pair.value) for pair in metadata.properties}
        yield row(f"{identifier}:{index}", as_text(metadata.partition_key), properties, data)


def properties_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Properties come one to a header, or as one JSON object."""
    one_each = {
        name.removeprefix(PROPERTY_PREFIX): value for name, value in headers.items() if name.startswith(PROPERTY_PREFIX)
    }
    together = json.loads(headers.get("x-pulsar-property", "{}"))
    return {**one_each, **together}


def row(identifier: str, key: str, properties: Mapping[str, str], data: bytes) -> dict[str, object]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "base64:" + base64.b64encode(data).decode()
    return {"id": identifier, "key": key, "properties": json.dumps(dict(properties), ensure_ascii=False), "data": text}
