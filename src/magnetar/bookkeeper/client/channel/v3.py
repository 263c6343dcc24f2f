"""Requests of version 3 under way to one bookie: what version 2 has no form for. Answers carry the request's number.

They have a connection of their own: one on which version 2 was spoken takes no more of version 3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from magnetar.base.limits import BOOKIE_CLIENT_REQUESTS_MAX
from magnetar.bookkeeper.client.channel.handshake import handshake_v3
from magnetar.bookkeeper.client.channel.lane import Environment, Lane
from magnetar.bookkeeper.codes import BOOKIE_TIMEOUT, BOOKIE_UNAVAILABLE, CODE_OF_STATUS, LAST_ENTRY, ReturnCode
from magnetar.bookkeeper.entry_format import peek_ids
from magnetar.bookkeeper.ports import AddDone, EntriesDone, InfoDone, LacDone, LastConfirmedDone, LongPollDone
from magnetar.wire.bookkeeper import BookkeeperProtocol_pb2 as pb
from magnetar.wire.bookkeeper.availability import EntryAvailability
from magnetar.wire.bookkeeper.frames import BookieFrameError, encode_frame

_logger = logging.getLogger(__name__)

_OK: Final = int(ReturnCode.OK)
_IO_ERROR: Final = int(ReturnCode.IO_ERROR)
_LAC_BODY_BYTES_MIN: Final = 16
_ENTRY_BYTES_MIN: Final = 24

Answered = Callable[[int, pb.Response], None]
"""`answered(code, response)`; the response is empty unless a bookie sent one."""


class V3Requests:
    """Implements the version 3 part of `BookieService` on a lane of its own."""

    def __init__(self, address: tuple[str, int], environment: Environment) -> None:
        self.lane = Lane(address, environment, handshake_v3, self)
        self._timeout_s = environment.options.read_timeout_s
        self._number = 0
        self._requests: dict[int, tuple[Answered, int]] = {}
        self.timeouts_total = 0

    @property
    def pending_count(self) -> int:
        """Requests that are not answered."""
        return len(self._requests)

    # ---- Requests

    def write_lac(self, ledger_id: int, body: bytes, master_key: bytes, done: AddDone) -> None:
        """See `BookieChannel.write_lac`."""
        if len(body) < _LAC_BODY_BYTES_MIN:
            done(int(ReturnCode.BAD_REQUEST))
            return
        lac = int.from_bytes(body[8:16], "big", signed=True)
        request = pb.WriteLacRequest(ledgerId=ledger_id, lac=lac, masterKey=master_key, body=body)
        self._send(pb.Request(writeLacRequest=request), pb.WRITE_LAC, lambda code, _: done(code))

    def read_lac(self, ledger_id: int, done: LacDone) -> None:
        """See `BookieChannel.read_lac`."""

        def answered(code: int, response: pb.Response) -> None:
            answer = response.readLacResponse
            done(code, _given(answer, "lacBody") if code == _OK else None, _given(answer, "lastEntryBody"))

        self._send(pb.Request(readLacRequest=pb.ReadLacRequest(ledgerId=ledger_id)), pb.READ_LAC, answered)

    def last_confirmed(self, ledger_id: int, done: LastConfirmedDone) -> None:
        """See `BookieService.last_confirmed`."""

        def read(code: int, body: bytes | None, last: bytes | None) -> None:
            if code == ReturnCode.NO_ENTRY:
                done(_OK, -1)
                return
            lac = -1
            if body is not None and len(body) >= _LAC_BODY_BYTES_MIN:
                lac = int.from_bytes(body[8:16], "big", signed=True)
            if last is not None and len(last) >= _ENTRY_BYTES_MIN:
                lac = max(lac, peek_ids(last)[2])
            done(code, lac if code == _OK else -1)

        self.read_lac(ledger_id, read)

    def wait_lac(self, ledger_id: int, previous_lac: int, timeout_s: float, done: LongPollDone) -> Callable[[], None]:
        """See `BookieService.wait_lac`. The bookie learns of a request that is forgotten when its time is up."""
        forgotten = False

        def answered(code: int, response: pb.Response) -> None:
            answer = response.readResponse
            if forgotten:
                return
            if code != _OK:
                done(code, -1, None)
            else:
                done(code, answer.maxLAC if answer.HasField("maxLAC") else -1, _given(answer, "body"))

        def forget() -> None:
            nonlocal forgotten
            forgotten = True

        request = pb.ReadRequest(
            flag=pb.ReadRequest.ENTRY_PIGGYBACK,
            ledgerId=ledger_id,
            entryId=LAST_ENTRY,
            previousLAC=previous_lac,
            timeOut=int(timeout_s * 1000),
        )
        self._send(pb.Request(readRequest=request), pb.READ_ENTRY, answered, timeout_s)
        return forget

    def force_ledger(self, ledger_id: int, done: AddDone) -> None:
        """See `BookieService.force_ledger`."""
        request = pb.Request(forceLedgerRequest=pb.ForceLedgerRequest(ledgerId=ledger_id))
        self._send(request, pb.FORCE_LEDGER, lambda code, _: done(code))

    def bookie_info(self, done: InfoDone) -> None:
        """See `BookieService.bookie_info`."""

        def answered(code: int, response: pb.Response) -> None:
            answer = response.getBookieInfoResponse
            done(code, answer.totalDiskCapacity, answer.freeDiskSpace)

        request = pb.Request(getBookieInfoRequest=pb.GetBookieInfoRequest(requested=3))
        self._send(request, pb.GET_BOOKIE_INFO, answered)

    def list_entries(self, ledger_id: int, done: EntriesDone) -> None:
        """See `BookieService.list_entries`. Apache's DbLedgerStorage never answers: BOOKIE_TIMEOUT."""

        def answered(code: int, response: pb.Response) -> None:
            if code != _OK:
                done(code, None)
                return
            blob = response.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger
            try:
                entries = EntryAvailability.from_bytes(blob)
            except BookieFrameError as error:
                _logger.warning("a bookie's list of entries cannot be read: %s", error)
                done(_IO_ERROR, None)
            else:
                done(_OK, entries)

        request = pb.GetListOfEntriesOfLedgerRequest(ledgerId=ledger_id)
        operation = pb.GET_LIST_OF_ENTRIES_OF_LEDGER
        self._send(pb.Request(getListOfEntriesOfLedgerRequest=request), operation, answered)

    def _send(
        self, request: pb.Request, operation: pb.OperationType.ValueType, answered: Answered, waits_s: float = 0.0
    ) -> None:
        lane = self.lane
        if not lane.up and not lane.connect():
            answered(BOOKIE_UNAVAILABLE, pb.Response())
            return
        if len(self._requests) >= BOOKIE_CLIENT_REQUESTS_MAX:
            answered(int(ReturnCode.TOO_MANY_REQUESTS), pb.Response())
            return
        number = self._number = self._number + 1
        request.header.version = pb.VERSION_THREE
        request.header.operation = operation
        request.header.txnId = number
        self._requests[number] = (answered, lane.ticks + lane.ticks_for(self._timeout_s + waits_s))
        lane.write(encode_frame(request.SerializeToString()))

    # ---- Answers

    def receive(self, frames: list[bytes]) -> None:
        """See `LaneUser.receive`."""
        for frame in frames:
            try:
                response = pb.Response.FromString(frame)
            except DecodeError:
                raise BookieFrameError("an answer that is not of version 3") from None
            if (
                not response.IsInitialized()
            ):  # parsing alone does not look for required fields, and a missing status is EOK
                raise BookieFrameError("an answer without its required fields")
            answered, _ = self._requests.pop(response.header.txnId, (None, 0))
            if answered is not None:  # else its time ran out before
                _call(answered, CODE_OF_STATUS.get(response.status, _IO_ERROR), response)

    def lost(self) -> None:
        """See `LaneUser.lost`."""
        requests, self._requests = self._requests, {}
        for answered, _ in requests.values():
            _call(answered, BOOKIE_UNAVAILABLE, pb.Response())

    @property
    def busy(self) -> bool:
        """See `LaneUser.busy`."""
        return bool(self._requests)

    def sweep(self, ticks: int) -> bool:
        """See `LaneUser.sweep`."""
        expired = [number for number, (_, limit) in self._requests.items() if ticks > limit]
        self.timeouts_total += len(expired)
        for number in expired:
            answered, _ = self._requests.pop(number)
            _call(answered, BOOKIE_TIMEOUT, pb.Response())
        return bool(expired)


def _given(message: pb.ReadLacResponse | pb.ReadResponse, field: str) -> bytes | None:
    """An optional field of bytes; None when the bookie left it out."""
    return getattr(message, field) if message.HasField(field) else None  # type: ignore[arg-type]


def _call(answered: Answered, code: int, response: pb.Response) -> None:
    try:
        answered(code, response)
    except Exception:  # the answers behind it belong to others
        _logger.exception("the callback of a bookie's answer failed")
