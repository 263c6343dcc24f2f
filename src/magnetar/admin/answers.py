"""Responses in the forms that Pulsar's clients expect."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Mapping

from starlette.responses import Response, StreamingResponse

from magnetar.admin.pacing import Pace
from magnetar.managed_ledger.position import Position


def as_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`value` as a JSON document."""
    body = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return Response(body, status, headers, media_type="application/json")


NAMES_PER_TURN = 1_000
"""Names of a long list that are encoded before the loop serves everybody else."""

BODIES_KEPT_BYTES_MAX = 16 * 1024 * 1024
"""Encoded lists over all namespaces: those that were asked for longest ago go first. A longer one is never kept."""


class NameLists:
    """Answers that list names. A long list is encoded once for all who ask while it stays the same.

    One is encoded at a time, in turns with everything else that the loop does.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[object, tuple[list[str], bytes]] = OrderedDict()
        self._kept_bytes = 0
        self._encoding = asyncio.Lock()

    async def answer(self, key: object, names: list[str]) -> Response:
        """`key` says which list it is; `names` are compared with what was encoded for it last."""
        if len(names) <= NAMES_PER_TURN:
            return as_json(names)
        async with self._encoding:
            kept = self._kept.get(key)
            if kept is not None and kept[0] == names:
                self._kept.move_to_end(key)
                body = kept[1]
                await asyncio.sleep(0)  # copying it is work, too
            else:
                body = await _encoded(names)
                self._keep(key, names, body)
        return Response(body, media_type="application/json")

    def _keep(self, key: object, names: list[str], body: bytes) -> None:
        before = self._kept.pop(key, None)
        self._kept_bytes -= len(before[1]) if before is not None else 0
        if len(body) > BODIES_KEPT_BYTES_MAX:
            return
        self._kept[key] = (names, body)
        self._kept_bytes += len(body)
        while self._kept_bytes > BODIES_KEPT_BYTES_MAX:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1][1])


async def _encoded(names: list[str]) -> bytes:
    pieces = []
    for start in range(0, len(names), NAMES_PER_TURN):
        pieces.append(compact_json(names[start : start + NAMES_PER_TURN])[1:-1])
        await asyncio.sleep(0)
    return f"[{','.join(pieces)}]".encode()


PIECE_CHARS = 16 * 1024
"""Pieces of an answer that are sent together."""


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
