"""What holds for every answer of the server, whatever was asked: both raw clients look at each frame that they receive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand

EMPTY_IN_PULSAR = {"producer_success.schema_version"}
"""Set to nothing by Apache Pulsar too (tools/wire_differences.py compares presence): clients are used to it."""


def checked(command: BaseCommand) -> BaseCommand:
    """The same. AssertionError for an optional text that is set and empty: clients take a field that is there for one with a value, such
    as pulsar-rs an address of brokers."""
    empty = [name for name in empty_fields(command, "") if name not in EMPTY_IN_PULSAR]
    assert not empty, f"{BaseCommand.Type.Name(command.type)}: set, but empty: {', '.join(empty)}; leave it out"
    return command


def empty_fields(message: Any, path: str) -> Iterator[str]:
    """Names of optional strings and bytes that are set to nothing, at any depth."""
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        each = value if field.is_repeated else [value]
        if field.message_type is not None:
            for part in each:
                yield from empty_fields(part, f"{name}.")
        elif field.type in (field.TYPE_STRING, field.TYPE_BYTES) and not (
            field.is_repeated or field.is_required or value
        ):
            yield name
