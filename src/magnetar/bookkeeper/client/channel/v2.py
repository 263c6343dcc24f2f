"""Requests of version 2 under way to one bookie: adds, reads, batch reads; each ends in exactly one call of its `done`.

Answers name ledger and entry, not the request. So there is at most one request of a kind per entry on the wire; another one for the same
entry waits for the answer to the first. (Otherwise a plain read's answer could be taken for that of the fence sent with it, and
a recovery go on before the ledger is fenced durably.) A request whose time ran out keeps its place, without its callback, until its
answer has come or the connection is gone.

Adds of one run are nearly always answered in their order, and stored: their answers are then known bytes, and what arrives is compared with
these. Where it is anything else the run is divided, and each of its entries is a request of its own.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from struct import error as struct_error
from typing import Any, Final, NamedTuple

from magnetar.base.limits import BOOKIE_CLIENT_BYTES_MAX, BOOKIE_CLIENT_LATE_ANSWERS_MAX, BOOKIE_CLIENT_REQUESTS_MAX
from magnetar.bookkeeper.client.channel.handshake import handshake_v2
from magnetar.bookkeeper.client.channel.lane import Environment, Lane
from magnetar.bookkeeper.codes import BOOKIE_TIMEOUT, BOOKIE_UNAVAILABLE, ReturnCode
from magnetar.bookkeeper.entry_format import MASTER_KEY_BYTES
from magnetar.bookkeeper.ports import AddDone, BatchDone, ReadDone, RunAnswers
from magnetar.wire.bookkeeper import v2
from magnetar.wire.bookkeeper.frames import BookieFrameError

_logger = logging.getLogger(__name__)

_ADD: Final = v2.ADD
_READ: Final = v2.READ
_IO_ERROR: Final = int(ReturnCode.IO_ERROR)
_BAD_REQUEST: Final = int(ReturnCode.BAD_REQUEST)
_UNAUTHORIZED: Final = int(ReturnCode.UNAUTHORIZED)
_TOO_MANY_REQUESTS: Final = int(ReturnCode.TOO_MANY_REQUESTS)
_HEAD_BYTES: Final = v2.RESPONSE_HEAD_BYTES

_ENTRY_ANSWER_BYTES_MIN: Final = 64
"""Of a frame, what an entry may not take up: the heads around it, and the wrapping of version 3."""

_ANSWER_BYTES: Final = v2.ANSWER_BYTES

_encode_add_head = v2.encode_add_head
_ledger_of_answer = v2.ledger_of_answer
_decode_response = v2.decode_response

_Key = tuple[int, int, int]
"""(operation, ledger, entry), or (BATCH_READ, request id, 0)."""


_Request = tuple[Callable[..., None] | None, int, int]
"""(`done`, or None when its time ran out; number of the sweep since which it is under way; bytes it counts for)."""


class _Held(NamedTuple):
    """Waits for the answer to another request with the same key."""

    request: _Request
    first: bytes
    second: bytes


class _SentRun:
    """Adds of one ledger that were sent together. `expected`: the answers if all are stored; `at`: where those that have come end."""

    __slots__ = ("at", "done", "entry_ids", "expected", "sizes", "tick")

    def __init__(self, ledger_id: int, entry_ids: Sequence[int], sizes: list[int], tick: int, done: AddDone) -> None:
        self.entry_ids = entry_ids
        self.sizes = sizes
        self.tick = tick
        self.done = done
        self.expected = v2.stored_answers(ledger_id, entry_ids)
        self.at = 0


class V2Requests:
    """Implements the version 2 part of `BookieChannel` on a lane of its own."""

    def __init__(self, address: tuple[str, int], environment: Environment) -> None:
        self.lane = Lane(address, environment, handshake_v2, self, self.take)
        options = environment.options
        self._entry_bytes_max = options.frame_bytes_max - _ENTRY_ANSWER_BYTES_MIN
        self._add_ticks = self.lane.ticks_for(options.add_timeout_s)
        self._read_ticks = self.lane.ticks_for(options.read_timeout_s)
        self._requests: dict[_Key, _Request] = {}
        self._runs: dict[int, deque[_SentRun]] = {}
        """By ledger. Their entries are not in `_requests`, and ascend from run to run."""
        self._run_entries = 0
        self._held: dict[_Key, deque[_Held]] = {}
        self._held_count = 0
        self._late_count = 0
        self._batch_id = 0
        self.pending_bytes = 0
        self.requests_total = 0
        self.timeouts_total = 0
        self.refused_total = 0

    @property
    def pending_count(self) -> int:
        """Requests that are not answered."""
        return len(self._requests) + self._run_entries + self._held_count - self._late_count

    # ---- Requests

    def add_entry(
        self, ledger_id: int, entry_id: int, entry: bytes, master_key: bytes, flags: int, done: AddDone
    ) -> None:
        """See `BookieChannel.add_entry`."""
        size = len(entry)
        if len(master_key) != MASTER_KEY_BYTES:
            done(_UNAUTHORIZED)
        elif size > self._entry_bytes_max:
            done(_BAD_REQUEST)
        else:
            code = self._send((_ADD, ledger_id, entry_id), done, size, _encode_add_head(flags, master_key, size), entry)
            if code:
                done(code)

    def add_run(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: list[bytes],
        master_key: bytes,
        flags: int,
        done: AddDone,
    ) -> None:
        """See `BookieChannel.add_run`. The protocol knows single entries; the requests of a run leave in one write, and answers that come
        together are looked at together."""
        requests, lane, count = self._requests, self.lane, len(entries)
        sizes = list(map(len, entries))
        size_bytes = sum(sizes)
        queued = self._runs.get(ledger_id)
        plain = (
            count > 1
            and len(master_key) == MASTER_KEY_BYTES
            and max(sizes) <= self._entry_bytes_max
            and len(requests) + self._run_entries + count <= BOOKIE_CLIENT_REQUESTS_MAX
            and self.pending_bytes + size_bytes <= BOOKIE_CLIENT_BYTES_MAX
            and (lane.up or lane.connect())
            and (queued is None or queued[-1].entry_ids[-1] < entry_ids[0])
            and (not requests or requests.keys().isdisjoint([(_ADD, ledger_id, entry_id) for entry_id in entry_ids]))
        )
        if not plain:
            answers = RunAnswers(count, done) if count > 1 else done
            for entry_id, entry in zip(entry_ids, entries, strict=True):
                self.add_entry(ledger_id, entry_id, entry, master_key, flags, answers)
            return
        run = _SentRun(ledger_id, entry_ids, sizes, lane.ticks, done)
        if queued is None:
            self._runs[ledger_id] = deque((run,))
        else:
            queued.append(run)
        self._run_entries += count
        self.requests_total += count
        self.pending_bytes += size_bytes
        pieces = entries * 2
        pieces[1::2] = entries
        if sizes.count(sizes[0]) == count:
            pieces[::2] = [_encode_add_head(flags, master_key, sizes[0])] * count
        else:
            heads = {size: _encode_add_head(flags, master_key, size) for size in set(sizes)}
            pieces[::2] = map(heads.__getitem__, sizes)
        lane.write_pieces(pieces)

    def read_entry(self, ledger_id: int, entry_id: int, flags: int, master_key: bytes, done: ReadDone) -> None:
        """See `BookieChannel.read_entry`."""
        if flags & v2.FLAG_FENCE and len(master_key) != MASTER_KEY_BYTES:
            done(_UNAUTHORIZED, None)
            return
        frame = v2.encode_read(ledger_id, entry_id, flags, master_key)
        code = self._send((_READ, ledger_id, entry_id), done, 0, frame)
        if code:
            done(code, None)

    def read_batch(self, ledger_id: int, first_entry_id: int, max_count: int, max_bytes: int, done: BatchDone) -> None:
        """See `BookieChannel.read_batch`."""
        self._batch_id += 1
        # Bookies count the heads of the answer and its entries as well; an int32 is what travels.
        max_count, max_bytes = min(max_count, 2**31 - 1), min(max_bytes, self._entry_bytes_max)
        frame = v2.encode_batch_read(ledger_id, first_entry_id, self._batch_id, max_count, max_bytes)
        code = self._send((v2.BATCH_READ, self._batch_id, 0), done, 0, frame)
        if code:
            done(code, [])

    def _send(self, key: _Key, done: Callable[..., None], size: int, first: bytes, second: bytes = b"") -> int:
        """Send a request; 0, or the code with which it is refused."""
        lane = self.lane
        if not lane.up and not lane.connect():
            self.refused_total += 1
            return BOOKIE_UNAVAILABLE
        if key[0] == _ADD and key[1] in self._runs:
            self._divide(key[1])
        requests = self._requests
        under_way = len(requests) + self._run_entries
        if under_way >= BOOKIE_CLIENT_REQUESTS_MAX or self.pending_bytes + size > BOOKIE_CLIENT_BYTES_MAX:
            self.refused_total += 1
            return _TOO_MANY_REQUESTS
        request = (done, lane.ticks, size)
        self.requests_total += 1
        if key in requests:
            return self._hold(key, _Held(request, first, second))
        self.pending_bytes += size
        requests[key] = request
        lane.write(first, second)
        return 0

    def _hold(self, key: _Key, held: _Held) -> int:
        if self._held_count >= BOOKIE_CLIENT_LATE_ANSWERS_MAX:
            self.refused_total += 1
            return _TOO_MANY_REQUESTS
        self.pending_bytes += held.request[2]
        self._held.setdefault(key, deque()).append(held)
        self._held_count += 1
        return 0

    def _send_held(self, key: _Key) -> None:
        """The request before it was answered."""
        waiting = self._held[key]
        held = waiting.popleft()
        if not waiting:
            del self._held[key]
        self._held_count -= 1
        self._requests[key] = held.request
        self.lane.write(held.first, held.second)

    # ---- Answers

    def take(self, data: bytes, position: int) -> int:
        """See `FrameCutter.feed`: what says that entries of runs are stored, in their order."""
        while self._runs and (room := len(data) - position) >= _ANSWER_BYTES:
            ledger_id = _ledger_of_answer(data, position)
            queued = self._runs.get(ledger_id)
            if queued is None:
                break
            run = queued[0]
            expected = run.expected
            if not run.at and data.startswith(expected, position):
                position += len(expected)
            else:
                size = min(len(expected) - run.at, room - room % _ANSWER_BYTES)
                if data[position : position + size] != expected[run.at : run.at + size]:
                    break
                position += size
                run.at += size
                if run.at < len(expected):
                    break
            queued.popleft()
            if not queued:
                del self._runs[ledger_id]
            self._run_entries -= len(run.sizes)
            self.pending_bytes -= sum(run.sizes)
            _call(run.done, _ADD, 0, None)
        return position

    def _divide(self, ledger_id: int) -> None:
        """What is not answered of a ledger's runs: from now on each entry is a request of its own."""
        for run in self._runs.pop(ledger_id):
            answered = run.at // _ANSWER_BYTES
            self._run_entries -= len(run.sizes)
            self.pending_bytes -= sum(run.sizes[:answered])
            answers = RunAnswers(len(run.sizes) - answered, run.done)
            for entry_id, size in zip(run.entry_ids[answered:], run.sizes[answered:], strict=True):
                self._requests[_ADD, ledger_id, entry_id] = (answers, run.tick, size)

    def receive(self, frames: list[bytes]) -> None:
        """See `LaneUser.receive`."""
        run: RunAnswers | None = None
        count = worst = 0
        try:
            for frame in frames:
                operation, code, data, request = self._take(frame)
                done, _, size = request
                self.pending_bytes -= size
                if done is not None and done is run:
                    count += 1
                    worst = worst or code
                    continue
                if run is not None:
                    before, run = run, None
                    _call(partial(before, count=count), _ADD, worst, None)
                if done is None:
                    self._late_count -= 1
                elif type(done) is RunAnswers:
                    run, count, worst = done, 1, code
                else:
                    _call(done, operation, code, data)
        finally:
            if run is not None:
                _call(partial(run, count=count), _ADD, worst, None)

    def _take(self, frame: bytes) -> tuple[int, int, Any, _Request]:
        """(operation, code, data, the request that is answered). Raises BookieFrameError."""
        try:
            header, code, ledger_id, entry_id = _decode_response(frame)
        except struct_error:
            raise BookieFrameError(f"an answer of {len(frame)} bytes is too short") from None
        operation = header >> 16 & 0xFF
        data: Any = None
        key = (operation, ledger_id, entry_id)
        if operation == _READ:
            data = frame[_HEAD_BYTES:] if code == 0 else None
        elif operation == v2.BATCH_READ:
            batch_id, data = v2.decode_batch_response(frame)
            key = (operation, batch_id, 0)
        elif ledger_id in self._runs and key not in self._requests:
            self._divide(ledger_id)
        request = self._requests.pop(key, None)  # a callback may have closed the lane: then there is nothing left
        if request is None:
            raise BookieFrameError(f"an answer to nothing: operation {operation} ledger {ledger_id} entry {entry_id}")
        if self._held and key in self._held:
            self._send_held(key)
        return operation, code if code >= 0 else _IO_ERROR, data, request

    def lost(self) -> None:
        """See `LaneUser.lost`."""
        requests, held, runs = self._requests, self._held, self._runs
        self._requests, self._held, self._runs = {}, {}, {}
        self._held_count = self._late_count = self._run_entries = self.pending_bytes = 0
        for queued in runs.values():
            for run in queued:
                _call(run.done, _ADD, BOOKIE_UNAVAILABLE, None)
        for key, (done, _, _) in requests.items():
            if done is not None:
                _call(done, key[0], BOOKIE_UNAVAILABLE, None)
        for key, waiting in held.items():
            for one in waiting:
                done = one.request[0]
                assert done is not None, "a held request is dropped when its time runs out"
                _call(done, key[0], BOOKIE_UNAVAILABLE, None)

    @property
    def busy(self) -> bool:
        """See `LaneUser.busy`."""
        return self.pending_count > 0

    def sweep(self, ticks: int) -> bool:
        """See `LaneUser.sweep`."""
        add_limit, read_limit = ticks - self._add_ticks, ticks - self._read_ticks
        for ledger_id in [ledger_id for ledger_id, queued in self._runs.items() if queued[0].tick < add_limit]:
            self._divide(ledger_id)
        expired: list[tuple[_Key, _Request]] = []
        for key, request in self._requests.items():
            if request[1] < (add_limit if key[0] == _ADD else read_limit) and request[0] is not None:
                expired.append((key, request))
        for key, (_, tick, size) in expired:
            self._requests[key] = (None, tick, 0)
            self.pending_bytes -= size
        self._late_count += len(expired)
        expired += self._expired_held(add_limit, read_limit)
        self.timeouts_total += len(expired)
        for key, (done, _, _) in expired:
            assert done is not None
            _call(done, key[0], BOOKIE_TIMEOUT, None)
        if self._late_count > BOOKIE_CLIENT_LATE_ANSWERS_MAX:
            self.lane.drop(ConnectionResetError(f"{self._late_count} requests were not answered in time"))
        return bool(expired)

    def _expired_held(self, add_limit: int, read_limit: int) -> list[tuple[_Key, _Request]]:
        """Take out those that were never sent; the others of their key stay in order."""
        expired: list[tuple[_Key, _Request]] = []
        for key, waiting in list(self._held.items()):
            limit = add_limit if key[0] == _ADD else read_limit
            while waiting and waiting[0].request[1] < limit:
                request = waiting.popleft().request
                self.pending_bytes -= request[2]
                self._held_count -= 1
                expired.append((key, request))
            if not waiting:
                del self._held[key]
        return expired


def _call(done: Callable[..., None], operation: int, code: int, data: Any) -> None:
    try:
        if operation == _ADD:
            done(code)
        elif operation == v2.BATCH_READ:
            done(code, data if code == 0 and data else [])
        else:
            done(code, data)
    except Exception:  # the answers behind it belong to others
        _logger.exception("the callback of a bookie's answer failed")
