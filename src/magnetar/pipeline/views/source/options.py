"""The options of CREATE SOURCE: which go to the connector and which say how messages are decoded. A decision core."""

from __future__ import annotations

import re
from typing import Final, Literal, cast, get_args

from magnetar.pipeline.connect.errors import SchemaError, SourceError
from magnetar.pipeline.connect.options import from_risingwave, full_name
from magnetar.pipeline.connect.protobuf import MessageType, from_location
from magnetar.pipeline.connect.segment_order import whole_topic
from magnetar.pipeline.sql.statements import CreateSource

ON_DECODE_ERROR: Final = "on.decode.error"
DEAD_LETTER_TOPIC: Final = "dead.letter.topic"
"""Where `dead_letter` of sources and of views sends messages; without it each goes to its own topic's
`TOPIC-SUBSCRIPTION-DLQ`, as a Pulsar consumer does."""

DecodePolicy = Literal["null", "skip", "dead_letter", "strict"]
"""What becomes of a message that cannot be decoded, whichever is chosen it is counted.

`null`: every column that cannot be read is NULL (the default, as in RisingWave). `skip`: it is left out. `dead_letter`: it is left out and
sent to a topic with the reason and its position. `strict`: the pipeline stops at it.
"""
_FORMER_NAMES: Final = {"fail": "strict"}

CONNECTOR: Final = "connector"
BYTES_COLUMN: Final = "value"
"""The column of FORMAT PLAIN ENCODE BYTES when the source names none."""
_OWN: Final = (CONNECTOR, ON_DECODE_ERROR, DEAD_LETTER_TOPIC)


def reader_options(source: CreateSource) -> dict[str, str]:
    """Of WITH (...), what `spark.readStream.format("magnetar")` takes. Raises OptionError."""
    given = {name: value for name, value in source.options.items() if name.lower() not in _OWN}
    if source.is_written:
        given["startingOffsets"] = "earliest"  # its topic is the table
    return from_risingwave(given)


def table_topic(pipeline: str, table: str) -> str:
    """Where the rows of a table lie that is written by INSERT, unless WITH (topic = '...') says so."""
    return f"magnetar-{pipeline}-{re.sub(r'[^a-z0-9_.-]', '_', table.lower())}"


def protobuf_message(source: CreateSource) -> tuple[MessageType | None, str | None]:
    """The type that ENCODE PROTOBUF (message = '...', schema.location = 'file:///...') names, None where the topic's schema says it; and
    the message's name, if there is one. Raises SourceError."""
    given = {name.lower(): value for name, value in source.format.options.items()}
    name, location = given.get("message"), given.get("schema.location")
    if location is None:
        return None, name
    try:
        return from_location(location, name or ""), name
    except SchemaError as error:
        raise SourceError(f"source {source.name}: {error}") from None


def decode_policy(source: CreateSource) -> DecodePolicy:
    """From ENCODE JSON (on.decode.error = '...') or WITH (...). Raises SourceError."""
    given = [
        value
        for options in (source.format.options, source.options)
        for name, value in options.items()
        if name.lower() == ON_DECODE_ERROR
    ]
    value = given[0].lower() if given else "null"
    value = _FORMER_NAMES.get(value, value)
    if len(set(given)) > 1 or value not in get_args(DecodePolicy):
        raise SourceError(
            f"source {source.name}: {ON_DECODE_ERROR} is {' and '.join(map(repr, given))}; give one of {', '.join(get_args(DecodePolicy))}"
        )
    return cast("DecodePolicy", value)


def sends_dead_letters(source: CreateSource) -> bool:
    """Whether messages that cannot be decoded go to a dead-letter topic, or those for which a view's expression fails. SourceError."""
    return source.sends_failed or decode_policy(source) == "dead_letter"


def dead_letter_topic(source: CreateSource, topic: str, subscription: str) -> str:
    """Where a message of a topic partition goes that is left out. Raises OptionError."""
    named = next((value for name, value in source.options.items() if name.lower() == DEAD_LETTER_TOPIC), None)
    whole = re.sub("^topic://", "persistent://", whole_topic(topic))
    return full_name(named) if named is not None else f"{whole}-{subscription}-DLQ"
