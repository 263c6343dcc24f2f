"""Which of the auditors audits: BookKeeper's votes in a `VoteElection` (BookKeeper replication/AuditorElector)."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf import text_format

from magnetar.bookkeeper.errors import UnderreplicationFormatError
from magnetar.metadata import paths
from magnetar.metadata.election import VoteElection
from magnetar.metadata.store import MetadataStore
from magnetar.wire.bookkeeper.DataFormats_pb2 import AuditorVoteFormat


def auditor_election(
    store: MetadataStore, bookie_id: str, on_change: Callable[[bool], None] | None = None
) -> VoteElection:
    """`bookie_id` stands as a candidate for as long as the election is entered."""
    vote = text_format.MessageToString(AuditorVoteFormat(bookieId=bookie_id)).encode()
    return VoteElection(store, paths.AUDITOR_VOTE_PREFIX, vote, on_change)


async def elected_auditor(store: MetadataStore) -> str | None:
    """The bookie id of the auditor; None without one. Raises UnderreplicationFormatError."""
    vote = await auditor_election(store, "").leader()
    if vote is None:
        return None
    try:
        return text_format.Parse(vote, AuditorVoteFormat()).bookieId
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise UnderreplicationFormatError(f"the auditor's vote {vote!r} is damaged: {error}") from error
