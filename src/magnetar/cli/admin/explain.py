"""`magnetar explain`: where something is, why it does not go on, and what would change that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from magnetar.admin.explain_documents import Explanation
from magnetar.cli.admin.common import common
from magnetar.cli.admin.http import connected
from magnetar.cli.output import echo_text, print_json

topic_option = click.option("-t", "--topic", required=True, help="Name of the topic, short or complete.")

one_subscription_option = click.option(
    "-s", "--subscription", help="Look at this subscription only; without it at all of the topic."
)


@click.group("explain")
def explain_group() -> None:
    """Say where something is, why it does not go on, and what would change that.

    Each answer has a verdict, the reasons with stable codes (`--json`), and what can be done about each.
    """


@explain_group.command("subscription")
@click.argument("subscription")
@topic_option
@common
def subscription_command(subscription: str, topic: str, admin_url: str, as_json: bool) -> None:
    """Say why SUBSCRIPTION stands still, or what is held up in it."""
    with connected(admin_url) as admin:
        show(admin.explain.subscription(topic, subscription), as_json)


@explain_group.command("topic")
@click.argument("topic")
@common
def topic_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Say why TOPIC takes no messages, which of its subscriptions stand still, and who was refused of late."""
    with connected(admin_url) as admin:
        show(admin.explain.topic(topic), as_json)


@explain_group.command("producer")
@click.argument("producer", required=False)
@topic_option
@common
def producer_command(producer: str | None, topic: str, admin_url: str, as_json: bool) -> None:
    """Say why PRODUCER does not get on or is refused; without a name, why any would be."""
    with connected(admin_url) as admin:
        show(admin.explain.producer(topic, producer), as_json)


@explain_group.command("key")
@click.argument("key")
@topic_option
@one_subscription_option
@click.option("--if-joins", metavar="NAME", help="Show what would change if a consumer of this name joined.")
@click.option("--if-leaves", metavar="NAME", help="Show what would change if the consumers of this name left.")
@common
def key_command(
    key: str,
    topic: str,
    subscription: str | None,
    if_joins: str | None,
    if_leaves: str | None,
    admin_url: str,
    as_json: bool,
) -> None:
    """Say where KEY is: partition, broker, bookies, and the consumer that has it."""
    with connected(admin_url) as admin:
        found = admin.explain.key(topic, key, subscription, if_joins=if_joins, if_leaves=if_leaves)
    rows = found.details.get("subscriptions", [])
    pictures = [] if as_json else [(row["subscription"], row.pop("whatIf")) for row in rows if "whatIf" in row]
    show(found, as_json)
    for name, change in pictures:
        echo_text("\n".join(picture(name, change)))


PICTURE_COLUMNS = 64
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def picture(subscription: str, change: dict[str, Any]) -> Iterator[str]:
    """The 65,536 hash slots as a line before and after: a letter for each consumer, a dot where nobody is."""
    before, after = change["rangesBefore"], change["rangesAfter"]
    names = list(dict.fromkeys(owner for _, _, owner in (*before, *after)))
    letters = {name: LETTERS[place % len(LETTERS)] for place, name in enumerate(names)}
    yield ""
    yield f"{subscription}: {change['slotsMoved']} of 65536 hash slots would move"
    yield f"  owner of the key: {change['ownerBefore'] or 'nobody'} -> {change['ownerAfter'] or 'nobody'}"
    yield f"  before {_drawn(before, letters)}"
    yield f"  after  {_drawn(after, letters)}"
    yield "  " + ", ".join(f"{letter} {name}" for name, letter in letters.items())


def _drawn(ranges: list[list[Any]], letters: dict[str, str]) -> str:
    step = 65536 // PICTURE_COLUMNS
    middles = (column * step + step // 2 for column in range(PICTURE_COLUMNS))
    owners = (next((owner for start, end, owner in ranges if start <= middle <= end), None) for middle in middles)
    return "".join("." if owner is None else letters[owner] for owner in owners)


@explain_group.command("message")
@click.argument("message_id")
@topic_option
@one_subscription_option
@common
def message_command(message_id: str, topic: str, subscription: str | None, admin_url: str, as_json: bool) -> None:
    """Say where the message MESSAGE_ID is (ledger:entry[:partition:batch index]), and what became of it in each subscription."""
    with connected(admin_url) as admin:
        show(admin.explain.message(topic, message_id, subscription), as_json)


@explain_group.command("cursor")
@click.argument("subscription")
@topic_option
@common
def cursor_command(subscription: str, topic: str, admin_url: str, as_json: bool) -> None:
    """Say where the replicated SUBSCRIPTION is in other clusters, and why its place there does not move."""
    with connected(admin_url) as admin:
        show(admin.explain.cursor(topic, subscription), as_json)


@explain_group.command("bundle")
@topic_option
@click.option(
    "--if-broker-dies", metavar="ID", help="Show where it would go without this broker (HOST:PORT of its admin API)."
)
@common
def bundle_command(topic: str, if_broker_dies: str | None, admin_url: str, as_json: bool) -> None:
    """Say why the bundle of a topic is on its broker, and what would move it."""
    with connected(admin_url) as admin:
        show(admin.explain.bundle(topic, if_broker_dies=if_broker_dies), as_json)


@explain_group.command("ledger")
@click.argument("ledger_id", type=click.IntRange(0))
@common
def ledger_command(ledger_id: int, admin_url: str, as_json: bool) -> None:
    """Say whose the ledger LEDGER_ID is, where its copies are, and what keeps it from being deleted."""
    with connected(admin_url) as admin:
        show(admin.explain.ledger(ledger_id), as_json)


def show(found: Explanation, as_json: bool) -> None:
    """The whole document as JSON, or the verdict, its reasons and the details a person looks at."""
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    echo_text("\n".join(_lines(found)))


def _lines(found: Explanation) -> Iterator[str]:
    yield found.verdict
    for reason in found.reasons:
        yield ""
        yield f"{reason.code}" + (f", since {reason.since}" if reason.since else "")
        yield f"  {reason.text}"
        yield f"  What to do: {reason.change}"
    plain = {name: value for name, value in found.details.items() if not isinstance(value, dict | list)}
    if plain:
        yield ""
        yield ", ".join(f"{name}: {_word(value)}" for name, value in plain.items())
    for name, value in found.details.items():
        if isinstance(value, dict | list) and value:
            yield from _nested(name, value)


def _nested(name: str, value: dict[str, Any] | list[Any]) -> Iterator[str]:
    yield ""
    yield f"{name}:"
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"  {key}: {_word(item)}"
        return
    for item in value:
        if isinstance(item, dict):
            yield "  " + ", ".join(f"{key}: {_word(each)}" for key, each in item.items() if each not in (None, ""))
        else:
            yield f"  {_word(item)}"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
