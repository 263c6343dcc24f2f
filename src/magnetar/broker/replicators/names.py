"""Names that clusters agree on, Pulsar's. Pure."""

from __future__ import annotations

from typing import Final

REPLICATOR_PREFIX: Final = "pulsar.repl"
"""Of the cursors and of the producers in other clusters (Pulsar's setting replicatorPrefix, which nobody changes)."""

SOURCE_POSITION_PROPERTY: Final = "__MSG_PROP_REPL_SOURCE_POSITION"
"""Ledger and entry of a message in the cluster that it came from, `ledger:entry`."""

INSTANCE_METADATA: Final = "magnetar.instance"
"""Of a replicator's producer: which metadata its cluster has, so that one that begins anew is not taken for a repeat."""

_DELIMITER: Final = "-->"


def cursor_name(remote: str) -> str:
    return f"{REPLICATOR_PREFIX}.{remote}"


def cluster_of_cursor(name: str) -> str | None:
    """The remote cluster; None for another cursor."""
    prefix = f"{REPLICATOR_PREFIX}."
    return name[len(prefix) :] if name.startswith(prefix) else None


def producer_name(local: str, remote: str) -> str:
    return f"{REPLICATOR_PREFIX}.{local}{_DELIMITER}{remote}"


def source_of_producer(name: str) -> str | None:
    """The cluster that a replicator's producer sends from; None for a client's."""
    prefix = f"{REPLICATOR_PREFIX}."
    if not name.startswith(prefix):
        return None
    return name[len(prefix) :].split(_DELIMITER, 1)[0]


def sequence_name(source: str) -> str:
    """Under which deduplication remembers how far it has another cluster's log."""
    return f"{REPLICATOR_PREFIX}.{source}"


def source_position(text: str) -> tuple[int, int] | None:
    """Ledger and entry of the property's value; None when it is none."""
    ledger, colon, entry = text.partition(":")
    digits = ledger.isascii() and ledger.isdigit() and entry.isascii() and entry.isdigit()
    return (int(ledger), int(entry)) if colon and digits else None
