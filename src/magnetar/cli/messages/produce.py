"""`magnetar produce`: the flags of `pulsar-client produce`."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from magnetar.broker.tracing.trace import ONLY_PROPERTY, TRACE_PROPERTY
from magnetar.cli.admin.http import DEFAULT_URL
from magnetar.cli.admin.http import connected as admin_connected
from magnetar.cli.errors import CommandError
from magnetar.cli.messages.pulsar_client import connected, url_option, verbose_option
from magnetar.cli.messages.trace import TRACES_TOLD_MAX, await_complete, show
from magnetar.cli.output import emit_record, json_option, on_terminal

COMPRESSION = ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")


@click.command("produce")
@click.argument("topic")
@click.option("-m", "--messages", multiple=True, help="Text to send; may be repeated.")
@click.option(
    "-s", "--separator", default=",", show_default=True, help="Splits each -m into messages; '' does not split."
)
@click.option(
    "-f",
    "--files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="File whose content is one message; - is stdin.",
)
@click.option(
    "-n",
    "--num-produce",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of times to send all messages.",
)
@click.option("-r", "--rate", type=click.FloatRange(0), default=0.0, help="Messages per second; 0 means no limit.")
@click.option("-k", "--key", help="Partition key of every message.")
@click.option("-p", "--properties", multiple=True, metavar="K=V[,K=V]", help="Properties of every message.")
@click.option("-db", "--disable-batching", is_flag=True, help="Send every message as an entry of its own.")
@click.option("-c", "--chunking", is_flag=True, help="Split messages above the server's maxMessageSize.")
@click.option(
    "--compression",
    type=click.Choice(COMPRESSION, case_sensitive=False),
    help="Compression of the messages.",
    default="NONE",
    show_default=True,
)
@click.option("--trace", "traced", is_flag=True, help="Print the way of the messages.")
@click.option(
    "--trace-only", is_flag=True, help="Store nothing: print which consumers would get the messages, and why not."
)
@click.option(
    "--trace-wait",
    type=click.FloatRange(0),
    default=2.0,
    show_default=True,
    help="Seconds to wait for the acknowledgements of traced messages.",
)
@click.option(
    "--admin-url",
    default=DEFAULT_URL,
    envvar="MAGNETAR_ADMIN_URL",
    show_default=True,
    show_envvar=True,
    help="Address of the admin API, asked for traces.",
)
@url_option
@verbose_option
@json_option
def produce_command(
    topic: str,
    messages: tuple[str, ...],
    separator: str,
    files: tuple[Path, ...],
    num_produce: int,
    rate: float,
    key: str | None,
    properties: tuple[str, ...],
    disable_batching: bool,
    chunking: bool,
    compression: str,
    traced: bool,
    trace_only: bool,
    trace_wait: float,
    admin_url: str,
    url: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Send messages to TOPIC and wait until the server has stored them all.

    The exit code is 1 if any of them was not stored. With --trace, the way of each is printed as a table on a terminal, as JSON elsewhere.
    """
    payloads = [*split(messages, separator), *map(read_payload, files)]
    if not payloads:
        raise click.UsageError("nothing to send; give -m TEXT or -f FILE")
    named = parse_properties(properties)
    trace_id = named.get(TRACE_PROPERTY) or (uuid.uuid4().hex if traced or trace_only else "")
    if trace_id:
        named[TRACE_PROPERTY] = trace_id
    if trace_only:
        named[ONLY_PROPERTY] = "true"
    attributes: dict[str, Any] = {"properties": named} | ({"partition_key": key} if key else {})
    with connected(url, verbose=verbose) as client:
        import pulsar

        producer = client.create_producer(
            topic,
            block_if_queue_full=True,
            batching_enabled=not (disable_batching or chunking or trace_id),
            chunking_enabled=chunking,
            compression_type=getattr(pulsar.CompressionType, compression),
        )
        tally = Tally()
        started = time.monotonic()
        try:
            for payload in paced(itertools.chain.from_iterable(itertools.repeat(payloads, num_produce)), rate):
                tally.sent += 1
                producer.send_async(payload, tally.answered, **attributes)
        finally:
            tally.wait()
        seconds = time.monotonic() - started
    if not (traced or trace_only):
        report(tally, topic, seconds, as_json)
        return
    check_stored(tally)
    with admin_connected(admin_url) as admin:
        show(
            await_complete(admin, topic, trace_id, min(tally.stored, TRACES_TOLD_MAX), trace_wait),
            as_json or not on_terminal(),
        )


class Tally:
    """Counts answers, which arrive on a thread of the client library."""

    def __init__(self) -> None:
        self.sent = self.stored = self.failed = 0
        self.problem = ""
        self._change = threading.Condition()

    def answered(self, result: Any, _message_id: Any) -> None:
        with self._change:
            if result.name == "Ok":
                self.stored += 1
            else:
                self.failed += 1
                self.problem = result.name
            self._change.notify()

    def wait(self) -> None:
        """Until everything sent has its answer; the client's send timeout bounds it."""
        with self._change:
            self._change.wait_for(lambda: self.stored + self.failed >= self.sent)


def split(messages: tuple[str, ...], separator: str) -> Iterator[bytes]:
    for message in messages:
        yield from (part.encode() for part in (message.split(separator) if separator else [message]))


def read_payload(path: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error


def parse_properties(words: tuple[str, ...]) -> dict[str, str]:
    """`K=V` pairs, several in a word when separated by commas."""
    pairs = [pair.partition("=") for word in words for pair in word.split(",")]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise click.UsageError("a property is written K=V")
    return {name.strip(): value for name, _, value in pairs}


def paced(payloads: Iterator[bytes], rate: float) -> Iterator[bytes]:
    """The payloads, not more than `rate` a second; 0 does not wait."""
    started = time.monotonic()
    for number, payload in enumerate(payloads):
        wait = started + number / rate - time.monotonic() if rate else 0.0
        if wait > 0:
            time.sleep(wait)
        yield payload


def report(tally: Tally, topic: str, seconds: float, as_json: bool) -> None:
    if as_json:
        rate = round(tally.stored / seconds, 1) if seconds else 0.0
        emit_record(
            {
                "topic": topic,
                "stored": tally.stored,
                "failed": tally.failed,
                "seconds": round(seconds, 3),
                "messages_per_s": rate,
            },
            as_json=True,
        )
    else:
        click.echo(f"{tally.stored} messages stored in {topic} ({seconds:.2f} s)")
    check_stored(tally)


def check_stored(tally: Tally) -> None:
    """Raises CommandError unless all messages were."""
    if tally.failed:
        raise CommandError(f"{tally.failed} of {tally.sent} messages were not stored: {tally.problem}")
