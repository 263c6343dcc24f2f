"""Requests of version 3 of the bookie protocol (protobuf), done by the bookie. What cannot be served is answered EBADREQ, header echoed."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.bookkeeper.bookie.server.auth import ConnectionAuth
from magnetar.bookkeeper.bookie.server.connection import FrameConnection
from magnetar.bookkeeper.bookie.server.reads import ReadGate
from magnetar.bookkeeper.codes import (
    FLAG_FENCE,
    FLAG_HIGH_PRIORITY,
    FLAG_RECOVERY_ADD,
    LAST_ENTRY,
    STATUS_OF_CODE,
    ReturnCode,
)
from magnetar.bookkeeper.entry_format import peek_ids
from magnetar.bookkeeper.ports import BookieService
from magnetar.wire.bookkeeper import BookkeeperProtocol_pb2 as pb
from magnetar.wire.bookkeeper.availability import EntryAvailability
from magnetar.wire.bookkeeper.frames import encode_frame, pack_length

_OK: Final = int(ReturnCode.OK)
_EIO: Final = STATUS_OF_CODE[ReturnCode.IO_ERROR]

_INFO_TOTAL: Final = 1
_INFO_FREE: Final = 2


class V3Requests:
    """Of one connection. `receive(request)`, `close()` when the connection has ended."""

    def __init__(
        self,
        bookie: BookieService,
        connection: FrameConnection,
        reads: ReadGate,
        auth: ConnectionAuth,
        start_tls: ssl.SSLContext | None,
        scope: TaskScope,
    ) -> None:
        self._bookie = bookie
        self._connection = connection
        self._reads = reads
        self._auth = auth
        self._start_tls = start_tls
        self._scope = scope
        self._long_polls: dict[int, Callable[[], None]] = {}
        self._long_poll_number = 0
        self._handlers: dict[int, Callable[[pb.Request], None]] = {
            pb.READ_ENTRY: self._read,
            pb.ADD_ENTRY: self._add,
            pb.AUTH: self._authenticate,
            pb.WRITE_LAC: self._write_lac,
            pb.READ_LAC: self._read_lac,
            pb.GET_BOOKIE_INFO: self._info,
            pb.START_TLS: self._upgrade,
            pb.FORCE_LEDGER: self._force,
            pb.GET_LIST_OF_ENTRIES_OF_LEDGER: self._list_entries,
        }

    def receive(self, request: pb.Request) -> None:
        """Handle one request."""
        operation = request.header.operation
        if not self._auth.passed and operation not in (pb.AUTH, pb.START_TLS):
            self._refuse(request, pb.EUA)
        elif request.header.version != pb.VERSION_THREE:
            self._refuse(request, pb.EBADVERSION)
        else:
            self._handlers.get(operation, self._unknown)(request)

    def close(self) -> None:
        """Nobody waits for long polls any more."""
        polls, self._long_polls = self._long_polls, {}
        for forget in polls.values():
            forget()

    # ---- Answers

    def _unknown(self, request: pb.Request) -> None:
        self._refuse(request, pb.EBADREQ)

    def _refuse(self, request: pb.Request, status: pb.StatusCode.ValueType) -> None:
        self._answer(pb.Response(header=request.header, status=status))

    def _answer(self, response: pb.Response) -> None:
        self._connection.write(encode_frame(response.SerializeToString()))

    # ---- Adds

    def _add(self, request: pb.Request) -> None:
        if not request.HasField("addRequest"):
            self._refuse(request, pb.EBADREQ)
            return
        add = request.addRequest
        flags = FLAG_RECOVERY_ADD if add.flag == pb.AddRequest.RECOVERY_ADD and add.HasField("flag") else 0
        if request.header.priority:
            flags |= FLAG_HIGH_PRIORITY
        # With DEFERRED_SYNC an answer before the fsync would do. This one comes after it, as always.
        done = partial(self._added, request.header, add.ledgerId, add.entryId)
        self._bookie.add_entry(add.ledgerId, add.entryId, add.body, add.masterKey, flags, done)

    def _added(self, header: pb.BKPacketHeader, ledger_id: int, entry_id: int, code: int) -> None:
        status = _status(code)
        answer = pb.AddResponse(status=status, ledgerId=ledger_id, entryId=entry_id)
        self._answer(pb.Response(header=header, status=status, addResponse=answer))

    # ---- Reads

    def _read(self, request: pb.Request) -> None:
        if not request.HasField("readRequest"):
            self._refuse(request, pb.EBADREQ)
            return
        read = request.readRequest
        if read.HasField("flag") and read.flag == pb.ReadRequest.FENCE_LEDGER:
            self._start_read(request, FLAG_FENCE, 0)
        elif read.HasField("flag"):  # ENTRY_PIGGYBACK
            if read.HasField("previousLAC") and read.entryId == LAST_ENTRY:
                self._long_poll(request, piggyback=True)
            else:
                self._read_done(request, 0, ReturnCode.BAD_REQUEST, None)
        elif read.HasField("previousLAC"):
            self._long_poll(request, piggyback=False)
        elif request.header.priority:
            self._start_read(request, FLAG_HIGH_PRIORITY, 0)
        elif not self._reads.submit(0, partial(self._start_read, request, 0)):
            self._read_done(request, 0, ReturnCode.TOO_MANY_REQUESTS, None)

    def _start_read(self, request: pb.Request, flags: int, size: int) -> None:
        read = request.readRequest
        done = partial(self._read_done if flags & FLAG_FENCE else self._read_with_lac, request, size)
        self._bookie.read_entry(read.ledgerId, read.entryId, flags, read.masterKey, done)

    def _read_with_lac(self, request: pb.Request, size: int, code: int, entry: bytes | None) -> None:
        """A read that does not fence tells the LAC as well."""
        if code != _OK or entry is None:
            self._read_done(request, size, code, entry)
            return

        def known(code: int, lac: int) -> None:
            self._read_done(request, size, _OK, entry, max(lac, peek_ids(entry)[2]))

        self._bookie.last_confirmed(request.readRequest.ledgerId, known)

    def _read_done(
        self, request: pb.Request, size: int, code: int, entry: bytes | None, lac: int | None = None
    ) -> None:
        read = request.readRequest
        self._send_read(request.header, read.ledgerId, read.entryId, code, entry, lac)
        if size:
            self._reads.ended(size, entry)

    def _send_read(
        self,
        header: pb.BKPacketHeader,
        ledger_id: int,
        entry_id: int,
        code: int,
        entry: bytes | None,
        lac: int | None,
    ) -> None:
        status = _status(code)
        answer = pb.ReadResponse(status=status, ledgerId=ledger_id, entryId=entry_id, body=entry, maxLAC=lac)
        body = pb.Response(header=header, status=status, readResponse=answer).SerializeToString()
        self._connection.write_data((pack_length(len(body)), body))

    def _long_poll(self, request: pb.Request, *, piggyback: bool) -> None:
        read = request.readRequest
        number = self._long_poll_number = self._long_poll_number + 1
        ended = False

        def done(code: int, lac: int, entry: bytes | None) -> None:
            nonlocal ended
            ended = True
            self._long_polls.pop(number, None)
            if code != _OK:
                self._read_done(request, 0, code, None)
            elif piggyback:
                entry_id = read.entryId if entry is None else read.previousLAC + 1
                self._send_read(request.header, read.ledgerId, entry_id, _OK, entry, lac)
            else:
                self._start_read(request, FLAG_HIGH_PRIORITY, 0)

        timeout_s = read.timeOut / 1000 if read.HasField("timeOut") else 0.0
        forget = self._bookie.wait_lac(read.ledgerId, read.previousLAC, timeout_s, done)
        if not ended:
            self._long_polls[number] = forget

    # ---- LAC

    def _write_lac(self, request: pb.Request) -> None:
        if not request.HasField("writeLacRequest"):
            self._refuse(request, pb.EBADREQ)
            return
        write = request.writeLacRequest

        def done(code: int) -> None:
            status = _status(code)
            answer = pb.WriteLacResponse(status=status, ledgerId=write.ledgerId)
            self._answer(pb.Response(header=request.header, status=status, writeLacResponse=answer))

        self._bookie.write_lac(write.ledgerId, write.body, write.masterKey, done)

    def _read_lac(self, request: pb.Request) -> None:
        if not request.HasField("readLacRequest"):
            self._refuse(request, pb.EBADREQ)
            return
        ledger_id = request.readLacRequest.ledgerId

        def done(code: int, body: bytes | None, last: bytes | None) -> None:
            status = _status(code)
            answer = pb.ReadLacResponse(status=status, ledgerId=ledger_id, lacBody=body, lastEntryBody=last)
            self._answer(pb.Response(header=request.header, status=status, readLacResponse=answer))

        self._bookie.read_lac(ledger_id, done)

    # ---- The rest

    def _force(self, request: pb.Request) -> None:
        if not request.HasField("forceLedgerRequest"):
            self._refuse(request, pb.EBADREQ)
            return
        ledger_id = request.forceLedgerRequest.ledgerId

        def done(code: int) -> None:
            status = _status(code)
            answer = pb.ForceLedgerResponse(status=status, ledgerId=ledger_id)
            self._answer(pb.Response(header=request.header, status=status, forceLedgerResponse=answer))

        self._bookie.force_ledger(ledger_id, done)

    def _info(self, request: pb.Request) -> None:
        requested = request.getBookieInfoRequest.requested

        def done(code: int, total: int, free: int) -> None:
            status = _status(code)
            answer = pb.GetBookieInfoResponse(
                status=status,
                totalDiskCapacity=total if requested & _INFO_TOTAL and code == _OK else None,
                freeDiskSpace=free if requested & _INFO_FREE and code == _OK else None,
            )
            self._answer(pb.Response(header=request.header, status=status, getBookieInfoResponse=answer))

        self._bookie.bookie_info(done)

    def _list_entries(self, request: pb.Request) -> None:
        if not request.HasField("getListOfEntriesOfLedgerRequest"):
            self._refuse(request, pb.EBADREQ)
            return
        ledger_id = request.getListOfEntriesOfLedgerRequest.ledgerId

        def done(code: int, entries: EntryAvailability | None) -> None:
            status = _status(code)
            blob = entries.to_bytes() if entries is not None else None
            answer = pb.GetListOfEntriesOfLedgerResponse(
                status=status, ledgerId=ledger_id, availabilityOfEntriesOfLedger=blob
            )
            self._answer(pb.Response(header=request.header, status=status, getListOfEntriesOfLedgerResponse=answer))

        self._bookie.list_entries(ledger_id, done)

    def _authenticate(self, request: pb.Request) -> None:
        answer = self._auth.answer(request.authRequest)
        self._answer(pb.Response(header=request.header, status=pb.EOK, authResponse=answer))

    def _upgrade(self, request: pb.Request) -> None:
        if self._start_tls is None or self._connection.ssl_object is not None:
            self._refuse(request, pb.EBADREQ)
            return
        self._connection.prepare_tls()
        self._answer(pb.Response(header=request.header, status=pb.EOK, startTLSResponse=pb.StartTLSResponse()))
        self._scope.spawn(self._connection.start_tls(self._start_tls, self._auth.secured), "START_TLS", REPORTED)


def _status(code: int) -> pb.StatusCode.ValueType:
    return pb.StatusCode.ValueType(STATUS_OF_CODE.get(code, _EIO))
