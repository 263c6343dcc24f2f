"""`magnetar consume`: the flags of `pulsar-client consume`."""

from __future__ import annotations

import base64
import re
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import click

from magnetar.cli.messages.pulsar_client import connected, url_option, verbose_option
from magnetar.cli.output import echo_payload, json_option, print_json

TYPES = {"Exclusive": "Exclusive", "Shared": "Shared", "Failover": "Failover", "Key_Shared": "KeyShared"}
"""Names of the subscription types on the command line, and in the client library."""

POLL_MS = 200
"""How long a wait for a message may keep Ctrl-C waiting."""


@click.command("consume")
@click.argument("topic")
@click.option(
    "-s", "--subscription-name", required=True, help="Name of the subscription; it is created if it does not exist."
)
@click.option(
    "-n",
    "--num-messages",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Number of messages to receive; 0 receives until Ctrl-C.",
)
@click.option(
    "-t",
    "--subscription-type",
    type=click.Choice([*TYPES], case_sensitive=False),
    help="Type of the subscription.",
    default="Exclusive",
    show_default=True,
)
@click.option(
    "-p",
    "--subscription-position",
    type=click.Choice(["Latest", "Earliest"], case_sensitive=False),
    default="Latest",
    show_default=True,
    help="Where a new subscription starts: Latest or Earliest.",
)
@click.option("-r", "--rate", type=click.FloatRange(0), default=0.0, help="Messages per second; 0 means no limit.")
@click.option(
    "-q",
    "--queue-size",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Number of messages fetched ahead.",
)
@click.option("--regex", is_flag=True, help="TOPIC is a regular expression over the topics of a namespace.")
@click.option("--hex", "as_hex", is_flag=True, help="Print payloads in hexadecimal.")
@click.option("--hide-content", is_flag=True, help="Do not print payloads.")
@click.option(
    "-w", "--wait", "wait_s", type=click.FloatRange(0), help="Stop after this many seconds without a message."
)
@url_option
@verbose_option
@json_option
def consume_command(
    topic: str,
    subscription_name: str,
    num_messages: int,
    subscription_type: str,
    subscription_position: str,
    rate: float,
    queue_size: int,
    regex: bool,
    as_hex: bool,
    hide_content: bool,
    wait_s: float | None,
    url: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Receive messages of TOPIC, print them and acknowledge them.

    With --json each message is one line. Only printed messages are acknowledged; after Ctrl-C all others are redelivered.
    """
    with connected(url, verbose=verbose) as client:
        import pulsar

        consumer = client.subscribe(
            re.compile(topic) if regex else topic,
            subscription_name,
            consumer_type=getattr(pulsar.ConsumerType, TYPES[subscription_type]),
            initial_position=getattr(pulsar.InitialPosition, subscription_position),
            receiver_queue_size=queue_size,
            batch_index_ack_enabled=True,  # else what `-n` took from the middle of a batch would come again
        )
        stop = stop_on_ctrl_c()
        for count, message in enumerate(received(consumer, wait_s, stop), 1):
            show(message, as_json=as_json, as_hex=as_hex, hide=hide_content)
            consumer.acknowledge(message)
            if count == num_messages:
                break
            if rate:
                stop.wait(1 / rate)
        if stop.is_set():
            raise KeyboardInterrupt


def stop_on_ctrl_c() -> threading.Event:
    """Set by the first Ctrl-C, so that it never comes between printing and acknowledging; the second one interrupts at once."""
    stop = threading.Event()

    def interrupted(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGINT, interrupted)
    return stop


def received(consumer: Any, wait_s: float | None, stop: threading.Event) -> Iterator[Any]:
    """Messages as they come; ends when told to stop, and after `wait_s` without one (None: never)."""
    import pulsar

    last = time.monotonic()
    while not stop.is_set() and (wait_s is None or time.monotonic() - last < wait_s):
        try:
            message = consumer.receive(POLL_MS)
        except pulsar.Timeout:
            continue
        yield message
        last = time.monotonic()


def show(message: Any, *, as_json: bool, as_hex: bool, hide: bool) -> None:
    """One message on stdout."""
    if as_json:
        print_json(describe(message, hide=hide))
        return
    content = "" if hide else message.data().hex(" ") if as_hex else message.data().decode("utf-8", "backslashreplace")
    properties = ", ".join(f"{name}={value}" for name, value in sorted(message.properties().items()))
    click.echo("----- got message -----")
    head = f"id:{identifier(message)}, publishTime:{message.publish_timestamp()}, key:[{message.partition_key()}], "
    echo_payload(content, before=f"{head}properties:[{properties}], content:")


def describe(message: Any, *, hide: bool) -> dict[str, object]:
    """A message as JSON; a payload that is not text becomes `data_base64`."""
    fields: dict[str, object] = {
        "id": identifier(message),
        "topic": message.topic_name(),
        "publish_time_ms": message.publish_timestamp(),
        "event_time_ms": message.event_timestamp(),
        "key": message.partition_key(),
        "properties": dict(message.properties()),
        "redelivery_count": message.redelivery_count(),
    }
    if not hide:
        try:
            fields["data"] = message.data().decode()
        except UnicodeDecodeError:
            fields["data_base64"] = base64.b64encode(message.data()).decode()
    return fields


def identifier(message: Any) -> str:
    """ledger:entry:partition:batch-index."""
    position = message.message_id()
    return f"{position.ledger_id()}:{position.entry_id()}:{position.partition()}:{position.batch_index()}"
