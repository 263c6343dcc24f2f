"""`magnetar explain`: where something is, why it does not go on, and what would change that."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from magnetar.admin.documents.explain import Explanation
from magnetar.base.clock import SystemClock
from magnetar.broker.naming import TopicName
from magnetar.cli.admin.common import common
from magnetar.cli.admin.explain_pictures import SLOTS, draw_ranges, draw_units, lines_of, needs_what_if, svg_option
from magnetar.cli.admin.http import connected
from magnetar.cli.output import echo_text, print_json

HASHES: Final = 2**32
"""Of topics' names, which bundles share."""

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
@svg_option
@click.option(
    "-p", "--pipeline", "pipelines", multiple=True, help="Name or directory of a pipeline to look into as well."
)
@common
def key_command(
    key: str,
    topic: str,
    subscription: str | None,
    if_joins: str | None,
    if_leaves: str | None,
    svg: Path | None,
    pipelines: tuple[str, ...],
    admin_url: str,
    as_json: bool,
) -> None:
    """Say where KEY is: partition, broker, bookies, the consumer that has it, and its vnode and unit in pipelines that read the topic.

    Pipelines whose drivers report to the broker are found by themselves; --pipeline looks into one on this machine.
    """
    needs_what_if(svg, bool(if_joins or if_leaves), "--if-joins or --if-leaves")
    with connected(admin_url) as admin:
        found = admin.explain.key(topic, key, subscription, if_joins=if_joins, if_leaves=if_leaves)
    if pipelines:
        known = found.details.setdefault("pipelines", [])
        local = [place for name in pipelines for place in _places(name, topic, key)]
        found.details["pipelines"] = local + [row for row in known if _stage(row) not in map(_stage, local)]
    rows = found.details.get("subscriptions", [])
    changes = [(row["subscription"], row["whatIf"]) for row in rows if "whatIf" in row]
    if svg is not None and changes:
        draw_ranges(svg, changes[0][1], SLOTS)
    if not as_json:
        for row in rows:
            row.pop("whatIf", None)
    show(found, as_json)
    for name, change in [] if as_json else changes:
        told = f"{change['slotsMoved']} of {SLOTS} hash slots"
        echo_text("\n".join(lines_of(name, change, SLOTS, told)))


def _places(pipeline: str, topic: str, key: str) -> list[dict[str, Any]]:
    from magnetar.broker.explain.view import places_of_key
    from magnetar.pipeline.views.control.listing import overview
    from magnetar.pipeline.views.control.why import report_of_overview

    whole = str(TopicName.parse(topic).partitioned_name)
    return places_of_key(report_of_overview(overview(pipeline, SystemClock())), whole, key)


def _stage(row: Mapping[str, Any]) -> tuple[object, object]:
    return row["pipeline"], row["stage"]


@explain_group.command("view")
@click.argument("view")
@click.option(
    "-p",
    "--pipeline",
    envvar="MAGNETAR_PIPELINE",
    show_envvar=True,
    help="Name or directory of the pipeline; may be omitted when there is only one.",
)
@click.option(
    "-k",
    "--key",
    multiple=True,
    metavar="VALUE",
    help="Where the row of this key comes from; COLUMN=VALUE for each of several columns.",
)
@click.option("--if-units", type=click.IntRange(1), help="Show which vnodes would move with so many units.")
@svg_option
@click.option(
    "--reported",
    is_flag=True,
    help="Ask the broker at --admin-url what the pipeline's driver reported, from any machine.",
)
@common
def view_command(
    view: str,
    pipeline: str | None,
    key: tuple[str, ...],
    if_units: int | None,
    svg: Path | None,
    reported: bool,
    admin_url: str,
    as_json: bool,
) -> None:
    """Say what VIEW of a pipeline holds of its topics, how stale it is and why, and where a key's row comes from.

    Reads the pipeline's directory, so neither its driver nor a broker has to run. With --key the answer names vnode, unit and files,
    the row, and the input rows that the view's operators keep. With --reported the rows are left out: a broker does not have them.
    """
    needs_what_if(svg, if_units is not None, "--if-units")
    if reported:
        if pipeline is None:
            raise click.UsageError("--reported needs the name of the pipeline: --pipeline NAME")
        with connected(admin_url) as admin:
            found = admin.explain.view(pipeline, view, key, if_units=if_units)
    else:
        found = msgspec.convert(_of_directory(pipeline, view, key, if_units or 0), Explanation)
    change = found.details.get("whatIf")
    if svg is not None and change is not None:
        draw_units(svg, change)
    if not as_json:
        found.details.pop("whatIf", None)
    show(found, as_json)
    if change is not None and not as_json:
        told = f"{change['vnodesMoved']} of {change['vnodes']} vnodes"
        echo_text("\n".join(lines_of(f"{change['units']} units", change, change["vnodes"], told)))


def _of_directory(pipeline: str | None, view: str, key: tuple[str, ...], units: int) -> dict[str, Any]:
    from magnetar.pipeline.views.control.listing import meant
    from magnetar.pipeline.views.control.why import explain_view

    return explain_view(meant(pipeline, SystemClock()).place.directory, view, key, units).document()


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
@svg_option
@common
def bundle_command(topic: str, if_broker_dies: str | None, svg: Path | None, admin_url: str, as_json: bool) -> None:
    """Say why the bundle of a topic is on its broker, and what would move it."""
    needs_what_if(svg, if_broker_dies is not None, "--if-broker-dies")
    with connected(admin_url) as admin:
        found = admin.explain.bundle(topic, if_broker_dies=if_broker_dies)
    change = found.details.get("whatIf")
    if svg is not None and change is not None:
        draw_ranges(svg, change, HASHES)
    drawn = (
        change if change is None or as_json else {name: change.pop(name) for name in ("rangesBefore", "rangesAfter")}
    )
    show(found, as_json)
    if drawn is not None and change is not None and not as_json:
        told = f"{change['bundlesMoved']} bundles of {change['brokerDies']}"
        echo_text("\n".join(lines_of(topic, drawn, HASHES, told)))


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
