"""What a route takes and answers, declared where its handler is: `@documented(body=TenantInfo, answer=list[str])`.

The OpenAPI document is made of these, of the route table and of the handlers' docstrings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from magnetar.admin.routing import Handler

JSON, TEXT, BYTES = "application/json", "text/plain", "application/octet-stream"

NOTHING = object()
"""`answer`: 204 without a body."""

FORCE: Mapping[str, Any] = {"force": bool}
QUOTA_TYPE: Mapping[str, Any] = {"backlogQuotaType": Literal["destination_storage", "message_age"]}


@dataclass(frozen=True, slots=True)
class Operation:
    """`body`, `answer` and the values of `query` are types that msgspec knows; `errors` are statuses beyond the usual ones."""

    summary: str = ""
    body: Any = None
    answer: Any = NOTHING
    media: str = JSON
    may_be_unset: bool = False
    """Answers 204 instead while there is nothing."""
    query: Mapping[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    """Values of `query` that must be given."""
    errors: tuple[int, ...] = ()
    heavy: bool = False
    """Its work grows with the topics of a namespace or a broker, or with the partitions of a topic: see `admin/pacing`."""
    effect: bool | str = False
    """A GET that changes something: always, or where this query parameter is true. Refused to pages of other sites like a PUT."""
    of_replicators: bool = False
    """The subscription that its path names may be the cursor of a replicator: an administrator may give up its backlog."""
    always_fails: bool = False
    """No success is possible: only errors are documented."""


OPERATIONS: dict[Handler, Operation] = {}
"""By handler; one that serves several paths has one entry."""


def documented(summary: str = "", **about: Any) -> Callable[[Handler], Handler]:
    """A decorator that remembers `Operation(summary, **about)` for a handler. The summary is its docstring unless given."""

    def remember(handler: Handler) -> Handler:
        text = summary or " ".join((handler.__doc__ or "").split())
        assert text, f"{handler}: say what it does"
        OPERATIONS[handler] = Operation(text, **about)
        return handler

    return remember
