"""Names that clusters agree on, Pulsar's. Pure."""

from __future__ import annotations

from typing import Final

REPLICATOR_PREFIX: Final = "pulsar.repl"
"""Name prefix of the cursors and of the producers in other clusters (the default of Pulsar's setting replicatorPrefix)."""

SOURCE_POSITION_PROPERTY: Final = "__MSG_PROP_REPL_SOURCE_POSITION"
"""Ledger and entry of a message in the cluster that it came from, `ledger:entry`."""

INSTANCE_METADATA: Final = "magnetar.instance"
"""Property of a replicator's producer: the id of its cluster's metadata, so that a cluster made anew is not taken for a repeat."""

LOG_END_METADATA: Final = "magnetar.log-end"
"""Property of a replicator's producer: the last entry of its log, `ledger:entry`, so that no place behind it is taken for stored."""

PLACE_DIGITS_MAX: Final = 19
"""Most digits of a ledger or entry id, which are signed 64-bit numbers; a longer one is not valid."""

SOURCE_SEGMENT_PROPERTY: Final = "magnetar.source-segment"
"""Of a message that a segment's replicator sent: the id of that segment in the cluster that it came from, whose log the position is in."""

_DELIMITER: Final = "-->"

_SEGMENT_DELIMITER: Final = "|"
"""Between a cluster's name, which cannot hold it, and a segment's id."""


def cursor_name(remote: str) -> str:
    return f"{REPLICATOR_PREFIX}.{remote}"


def cluster_of_cursor(name: str) -> str | None:
    """The remote cluster; None for another cursor."""
    prefix = f"{REPLICATOR_PREFIX}."
    return name[len(prefix) :] if name.startswith(prefix) else None


def producer_name(local: str, remote: str, segment_id: int | None = None) -> str:
    return (
        f"{REPLICATOR_PREFIX}.{source_name(local, '' if segment_id is None else str(segment_id))}{_DELIMITER}{remote}"
    )


def source_name(cluster: str, segment_id: str = "") -> str:
    """What sends: a cluster, of a scalable topic one of its segments there. Each has a log of its own."""
    return f"{cluster}{_SEGMENT_DELIMITER}{segment_id}" if segment_id else cluster


def cluster_of_source(source: str) -> str:
    return source.partition(_SEGMENT_DELIMITER)[0]


def is_source(source: str, of_segment: bool) -> bool:
    """True for what `source_name` makes for a topic, or for a segment where `of_segment`. The name is the sender's: others would each be
    remembered for ever."""
    _, delimiter, segment_id = source.partition(_SEGMENT_DELIMITER)
    return not delimiter or (of_segment and _is_number(segment_id))


def source_of_producer(name: str) -> str | None:
    """What a replicator's producer sends from, as `source_name`; None for a client's."""
    prefix = f"{REPLICATOR_PREFIX}."
    if not name.startswith(prefix):
        return None
    return name[len(prefix) :].split(_DELIMITER, 1)[0]


def sequence_name(source: str, producer: str = "") -> str:
    """Under which deduplication remembers how far it has another cluster's log, or, where entries tell no places, one producer there."""
    return f"{REPLICATOR_PREFIX}.{source}/{producer}" if producer else f"{REPLICATOR_PREFIX}.{source}"


def source_position(text: str) -> tuple[int, int] | None:
    """Ledger and entry of the property's value; None when it is not a place."""
    ledger, colon, entry = text.partition(":")
    return (int(ledger), int(entry)) if colon and _is_number(ledger) and _is_number(entry) else None


def log_end(text: str) -> tuple[int, int] | None:
    """Parses LOG_END_METADATA: as `source_position`, with entry -1 for a log whose last ledger is empty."""
    if text.endswith(":-1"):
        begin = source_position(text.removesuffix("-1") + "0")
        return (begin[0], -1) if begin is not None else None
    return source_position(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= PLACE_DIGITS_MAX
