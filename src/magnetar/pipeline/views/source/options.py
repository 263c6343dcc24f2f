"""The options of CREATE SOURCE: which go to the connector and which say how messages are decoded. A decision core."""

from __future__ import annotations

from typing import Final, Literal, cast, get_args

from magnetar.pipeline.connect.errors import SourceError
from magnetar.pipeline.sql.statements import CreateSource

ON_DECODE_ERROR: Final = "on.decode.error"
"""What becomes of a message that cannot be decoded: `fail` stops the pipeline at it (the default), `skip` leaves it out, `null` makes
every column NULL that cannot be read. Both are counted."""
DecodePolicy = Literal["fail", "skip", "null"]

CONNECTOR: Final = "connector"
BYTES_COLUMN: Final = "value"
"""The column of FORMAT PLAIN ENCODE BYTES when the source names none."""


def reader_options(source: CreateSource) -> dict[str, str]:
    """Of WITH (...), what `spark.readStream.format("magnetar")` takes."""
    return {name: value for name, value in source.options.items() if name.lower() not in (CONNECTOR, ON_DECODE_ERROR)}


def decode_policy(source: CreateSource) -> DecodePolicy:
    """From ENCODE JSON (on.decode.error = '...') or WITH (...). Raises SourceError."""
    given = [
        value
        for options in (source.format.options, source.options)
        for name, value in options.items()
        if name.lower() == ON_DECODE_ERROR
    ]
    value = given[0].lower() if given else "fail"
    if len(set(given)) > 1 or value not in get_args(DecodePolicy):
        raise SourceError(
            f"source {source.name}: {ON_DECODE_ERROR} is {' and '.join(map(repr, given))}; give one of {', '.join(get_args(DecodePolicy))}"
        )
    return cast("DecodePolicy", value)
