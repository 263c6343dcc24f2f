"""Responses in the forms that Pulsar's clients expect."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

from magnetar.managed_ledger.position import Position


def as_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`value` as a JSON document."""
    body = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return Response(body, status, headers, media_type="application/json")


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
