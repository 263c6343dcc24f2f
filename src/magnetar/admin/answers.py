"""Responses in the forms that Pulsar's clients expect."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Mapping

from starlette.responses import Response, StreamingResponse

from magnetar.admin.pacing import Pace
from magnetar.managed_ledger.position import Position


def as_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`value` as a JSON document."""
    body = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return Response(body, status, headers, media_type="application/json")


PIECE_CHARS = 16 * 1024
"""Of an answer that is made in pieces: sent together."""


def compact_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def as_json_in_pieces(pieces: AsyncIterator[str]) -> Response:
    """A JSON document that is sent as it is made: of many topics no more than a few are in memory at once."""

    async def gathered() -> AsyncIterator[str]:
        held: list[str] = []
        size = 0
        async for piece in pieces:
            held.append(piece)
            size += len(piece)
            if size >= PIECE_CHARS:
                yield "".join(held)
                held.clear()
                size = 0
        yield "".join(held)

    return StreamingResponse(gathered(), media_type="application/json")


async def members(found: AsyncIterable[tuple[str, object]]) -> AsyncIterator[str]:
    """A JSON object in pieces, one for each of its members."""
    separator = "{"
    async for name, value in found:
        yield f"{separator}{compact_json(name)}:{compact_json(value)}"
        separator = ","
    yield "{}" if separator == "{" else "}"


async def in_slices(value: object, pace: Pace) -> AsyncIterator[str]:
    """A large JSON document in pieces. Four times the work of writing it at once, which would keep everybody else waiting."""
    for piece in json.JSONEncoder(separators=(",", ":"), allow_nan=False).iterencode(value):
        yield piece
        await pace.breathe()


def done() -> Response:
    """204: what a successful write answers."""
    return Response(status_code=204)


def as_json_or_nothing(value: object) -> Response:
    """A policy: 204 without a body while it is not set."""
    return done() if value is None else as_json(value)


def text(body: str) -> Response:
    return Response(body, media_type="text/plain")


def message_id(position: Position, partition: int, batch_size: int = 0) -> Response:
    """Pulsar's MessageId in JSON; `batch_size` > 0 names the last message of a batch."""
    document: dict[str, int] = {
        "ledgerId": position.ledger_id,
        "entryId": position.entry_id,
        "partitionIndex": partition,
    }
    if batch_size > 0:
        document |= {"batchIndex": batch_size - 1, "batchSize": batch_size}
    return as_json(document)
