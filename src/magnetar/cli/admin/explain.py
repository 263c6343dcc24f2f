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
