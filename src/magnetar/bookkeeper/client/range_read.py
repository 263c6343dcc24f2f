"""Reading a range of one ledger's entries from its bookies: plain callbacks, every byte checked.

A segment whose bookies all hold every entry (E = Qw) is read in batches from one preferred bookie; a striped one entry by entry. A
bookie that fails, or answers with a damaged or foreign entry, is skipped for the next replica of that entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnetar.base.errors import LedgerError, MagnetarError
from magnetar.bookkeeper.client.bookies import BookieDirectory, answer_error
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.entry_format import Digest, master_key, pack_lac, unpack_entry
from magnetar.bookkeeper.errors import BookieRequestError, DigestMismatchError, NoSuchEntryError, NoSuchLedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.ports import BookieChannel
from magnetar.bookkeeper.quorum import write_sets

RangeDone = Callable[[MagnetarError | None, list[bytes]], None]
"""`done(error, payloads)`; the payloads are those of a non-empty prefix of the range unless there is an error."""


class LedgerSource:
    """What reading a ledger takes: its metadata, keys and bookies. Shared by all reads of a handle."""

    __slots__ = ("bookies", "digest", "ledger_id", "master_key", "metadata", "preferred", "write_sets")

    def __init__(self, ledger_id: int, metadata: LedgerMetadata, password: bytes, bookies: BookieDirectory) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.bookies = bookies
        self.digest = Digest(metadata.digest_type, password)
        self.master_key = master_key(password)
        self.write_sets = write_sets(metadata.ensemble_size, metadata.write_quorum)
        self.preferred = 0
        """Index that unstriped reads try first; it moves on when that bookie fails."""

    def packed_lac(self, lac: int) -> bytes:
        """The body of an explicit LAC."""
        return pack_lac(self.ledger_id, lac, self.digest)

    @property
    def striped(self) -> bool:
        return self.metadata.ensemble_size > self.metadata.write_quorum

    def replicas(self, entry_id: int) -> tuple[int, ...]:
        """Ensemble indexes that hold the entry, in the order to try them."""
        return self.write_sets[(entry_id if self.striped else self.preferred) % len(self.write_sets)]


class RangeRead:
    """One read of `first..last`; `start` it once. At most one request to a bookie is under way."""

    __slots__ = (
        "_attempt",
        "_bytes_left",
        "_count",
        "_done",
        "_entry_id",
        "_error",
        "_finished",
        "_last",
        "_payloads",
        "_replicas",
        "_running",
        "_source",
        "_waiting",
        "last_length",
    )

    def __init__(self, source: LedgerSource, first: int, last: int, max_bytes: int, done: RangeDone) -> None:
        assert 0 <= first <= last
        self._source = source
        self._entry_id = first
        self._last = last
        self._bytes_left = max(max_bytes, 1)
        self._done = done
        self._payloads: list[bytes] = []
        self._replicas = source.replicas(first)
        self._attempt = 0
        self._count = 0
        self._error: LedgerError | None = None
        self._waiting = False
        self._running = False
        self._finished = False
        self.last_length = 0
        """The ledger's length up to and including the last entry read."""

    def start(self) -> None:
        self._run()

    def _run(self) -> None:
        """Ask until a bookie takes its time: answers that come at once do not nest."""
        if self._running:
            return
        self._running = True
        while not self._waiting and not self._finished:
            self._ask()
        self._running = False

    def _ask(self) -> None:
        if self._attempt == len(self._replicas):
            self._finish(self._error)
            return
        source = self._source
        segments = source.metadata.segments
        index = source.metadata.segment_index(self._entry_id)
        channel = source.bookies.channel(segments[index].ensemble[self._replicas[self._attempt]])
        self._waiting = True
        if source.striped:
            channel.read_entry(source.ledger_id, self._entry_id, 0, source.master_key, self._on_entry)
            return
        last = self._last
        if index + 1 < len(segments):
            last = min(last, segments[index + 1].first_entry_id - 1)
        self._ask_batch(channel, last - self._entry_id + 1)

    def _ask_batch(self, channel: BookieChannel, count: int) -> None:
        self._count = count
        channel.read_batch(self._source.ledger_id, self._entry_id, count, self._bytes_left, self._on_batch)

    def _on_batch(self, code: int, packed: list[bytes]) -> None:
        self._waiting = False
        if code != ReturnCode.OK:
            self._skip(answer_error(code, self._source.ledger_id, self._entry_id))
        elif not 1 <= len(packed) <= self._count:
            text = f"ledger {self._source.ledger_id}: a bookie answered {len(packed)} entries, 1 to {self._count} were asked"
            self._skip(BookieRequestError(text))
        else:
            self._take_batch(packed)
        self._run()

    def _take_batch(self, packed: list[bytes]) -> None:
        source = self._source
        digest, ledger_id, entry_id = source.digest, source.ledger_id, self._entry_id
        payloads = self._payloads
        try:
            for entry in packed:
                unpacked = unpack_entry(entry, digest, ledger_id, entry_id)
                payloads.append(unpacked.payload)
                self.last_length = unpacked.length
                entry_id += 1
        except DigestMismatchError as error:
            if not payloads:
                self._skip(error)
                return
            # The good ones before the damaged one are served; the next read starts at it and finds another replica.
        self._finish(None)

    def _on_entry(self, code: int, packed: bytes | None) -> None:
        self._waiting = False
        if code != ReturnCode.OK or packed is None:
            self._skip(answer_error(code, self._source.ledger_id, self._entry_id))
        else:
            self._take_entry(packed)
        self._run()

    def _take_entry(self, packed: bytes) -> None:
        source = self._source
        try:
            unpacked = unpack_entry(packed, source.digest, source.ledger_id, self._entry_id)
        except DigestMismatchError as error:
            self._skip(error)
            return
        size = len(unpacked.payload)
        if self._payloads and size > self._bytes_left:
            self._finish(None)
            return
        self._payloads.append(unpacked.payload)
        self.last_length = unpacked.length
        self._bytes_left -= size
        if self._entry_id == self._last or self._bytes_left <= 0:
            self._finish(None)
            return
        self._entry_id += 1
        self._replicas = source.replicas(self._entry_id)
        self._attempt = 0
        self._error = None

    def _skip(self, error: LedgerError) -> None:
        """Try the next replica. An explicit negative never hides another error: it says less about this entry."""
        if self._error is None or isinstance(self._error, NoSuchEntryError | NoSuchLedgerError):
            self._error = error
        self._attempt += 1
        if not self._source.striped and self._attempt < len(self._replicas):
            self._source.preferred = self._replicas[self._attempt]

    def _finish(self, error: MagnetarError | None) -> None:
        self._finished = True
        if error is not None and self._payloads:
            error = None
        self._done(error, [] if error is not None else self._payloads)


async def length_up_to(source: LedgerSource, entry_id: int) -> int:
    """Payload bytes of the ledger up to and including the entry, as the entry itself says. 0 for entry -1."""
    if entry_id < 0:
        return 0
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: MagnetarError | None, _: list[bytes]) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(None)

    read = RangeRead(source, entry_id, entry_id, 1, done)
    read.start()
    await answer
    return read.last_length
