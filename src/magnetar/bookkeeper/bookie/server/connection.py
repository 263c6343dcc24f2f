"""One connection to the bookie's server: bytes to frames, answers to bytes, back-pressure.

Reading pauses while answers wait for a peer that does not read them, and while frames of a burst are left over. All answers of one turn of
the event loop leave in one write.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from struct import error as struct_error
from typing import Any, cast

from google.protobuf.message import DecodeError

from magnetar.base.limits import (
    BOOKIE_IDLE_TIMEOUT_S,
    BOOKIE_OUTPUT_HIGH_BYTES,
    BOOKIE_PROGRESS_TIMEOUT_S,
    CLOSE_TIMEOUT_S,
    FRAMES_PER_CALLBACK_MAX,
    HANDSHAKE_TIMEOUT_S,
)
from magnetar.base.network import AdmittedProtocol
from magnetar.wire.bookkeeper.frames import BookieFrameError, FrameCutter

_logger = logging.getLogger(__name__)

_PAUSED_BY_OUTPUT = 1
_PAUSED_BY_FRAMES = 2
_PAUSED_BY_HANDSHAKE = 4


class FrameConnection(AdmittedProtocol):
    """`receive(frame)` handles one request; what it raises closes the connection. `on_room()`: the output has drained.

    `on_change(is_open)` is called once with True and once with False. `prove` is called by whoever knows that the peer may ask: until
    then it has HANDSHAKE_TIMEOUT_S and may have to make room, afterwards it is closed for BOOKIE_PROGRESS_TIMEOUT_S and
    BOOKIE_IDLE_TIMEOUT_S.
    """

    def __init__(self, frame_bytes_max: int, on_change: Callable[[bool], None]) -> None:
        self.receive: Callable[[bytes], None]
        self.take_adds: Callable[[deque[bytes], int], int] | None = None
        """`take_adds(frames, most)`: handles so many of those at the front, 0: the first one is for `receive`. None: not in use yet."""
        self.take_run: Callable[[bytes, int, int], tuple[int, int]] | None = None
        """`take_run(data, position, most)`: the same for what is not cut into frames yet; answers the position behind them, too."""
        self.on_room: Callable[[], None]
        self._on_change = on_change
        self._cutter = FrameCutter(frame_bytes_max)
        self._frames: deque[bytes] = deque()
        self._process_scheduled = False
        self._paused_by = 0
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._flush_scheduled = False
        self._close_timer: asyncio.TimerHandle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        self._frames_total = 0
        self._frames_seen = 0
        self._unsent_seen = -1
        self._idle_s = 0.0
        self.proven = False
        self.output_full = False
        self.closed = False
        self.peer = ""

    # ---- Life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._use(cast("asyncio.Transport", transport))  # uvloop's transports do not derive from it
        address = transport.get_extra_info("peername") or ("unknown", 0)
        self.peer = f"{address[0]}:{address[1]}"
        self._watch_timer = self._loop.call_later(HANDSHAKE_TIMEOUT_S, self._look_at_newcomer)
        self._on_change(True)

    def _use(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(BOOKIE_OUTPUT_HIGH_BYTES, BOOKIE_OUTPUT_HIGH_BYTES // 4)

    @property
    def ssl_object(self) -> Any:
        """The TLS session, with the peer's certificate; None in the clear."""
        return self._transport.get_extra_info("ssl_object")

    def prepare_tls(self) -> None:
        """Nothing that arrives in the clear is looked at from now on. Raises BookieFrameError when there is something already."""
        if self._frames or self._cutter.buffered_bytes:
            raise BookieFrameError("bytes in the clear behind START_TLS")
        self._pause(_PAUSED_BY_HANDSHAKE)

    async def start_tls(self, context: ssl.SSLContext, secured: Callable[[], None]) -> None:
        """Send what is buffered in the clear, then speak TLS on the same socket. A failed handshake closes the connection.

        `secured` is called before the first frame that came through TLS is handled.
        """
        self._flush()
        if self.closed:
            return
        try:
            upgraded = await self._loop.start_tls(
                self._transport, self, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
            )
        except (OSError, ssl.SSLError) as error:
            self.close(f"TLS handshake failed: {error}")
            return
        if upgraded is None or self.closed:
            return
        self._use(upgraded)
        secured()
        self._resume(_PAUSED_BY_HANDSHAKE)

    def close(self, reason: str = "") -> None:
        """Send what is buffered, then close. `reason` is logged once."""
        if self.closed:
            return
        if reason:
            _logger.info("bookie connection closed peer=%s reason=%s", self.peer, reason)
        self._flush()
        self._forget()
        self._transport.close()
        # A peer that never reads would keep its unsent answers, and the descriptor, for ever.
        self._close_timer = self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)

    def abort(self) -> None:
        """End the connection at once; what is unsent is dropped."""
        self._forget()
        self._transport.abort()

    def evict(self) -> None:
        """Make room for a newcomer."""
        self.abort()

    def prove(self) -> None:
        """The peer may ask: it keeps its place from now on."""
        self.proven = True
        if self.ticket is not None:
            self.ticket.settle()

    def limit_frames(self, frame_bytes_max: int) -> None:
        """A longer frame closes the connection from now on."""
        self._cutter.frame_bytes_max = frame_bytes_max

    def connection_lost(self, error: Exception | None) -> None:
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._forget()

    def _forget(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._watch_timer is not None:
            self._watch_timer.cancel()
        self._frames.clear()
        self._output.clear()
        self._on_change(False)

    # ---- Deadlines

    def _look_at_newcomer(self) -> None:
        if not self.proven:
            self.close("no request of somebody who may ask came in time")
            return
        self._watch_timer = self._loop.call_later(BOOKIE_PROGRESS_TIMEOUT_S, self._look)

    def _look(self) -> None:
        """Once in BOOKIE_PROGRESS_TIMEOUT_S, so a deadline may be passed by as much again."""
        came, self._frames_seen = self._frames_total != self._frames_seen, self._frames_total
        unsent, before = self._transport.get_write_buffer_size() if self.output_full else -1, self._unsent_seen
        self._unsent_seen = unsent
        self._idle_s = 0.0 if came or unsent != before else self._idle_s + BOOKIE_PROGRESS_TIMEOUT_S
        if self.output_full and unsent == before:
            self.close("its answers are not read")
        elif not came and self._cutter.buffered_bytes and not self._paused_by:
            self.close("a request did not arrive in full")
        elif self._idle_s >= BOOKIE_IDLE_TIMEOUT_S:
            self.close("no requests any more")
        else:
            self._watch_timer = self._loop.call_later(BOOKIE_PROGRESS_TIMEOUT_S, self._look)

    # ---- Input

    def data_received(self, data: bytes) -> None:
        data = self._cutter.gather(data)
        position = self._take_runs(data) if data and self.take_run is not None else 0
        if self.closed:
            return
        try:
            frames = self._cutter.cut(data, position)
        except BookieFrameError as error:
            self.close(str(error))
            return
        self._frames.extend(frames)
        self._frames_total += len(frames)
        if not self._process_scheduled:
            self._process()

    def _take_runs(self, data: bytes) -> int:
        """Adds at the front, where nothing stands before them; answers where they end. What is beyond one turn is cut into frames,
        which wait."""
        position, budget = 0, FRAMES_PER_CALLBACK_MAX
        assert self.take_run is not None
        try:
            while budget and not self._frames and not self._paused_by and not self.closed:
                position, taken = self.take_run(data, position, budget)
                if not taken:
                    break
                budget -= taken
                self._frames_total += taken
        except Exception:
            _logger.exception("a request of a bookie's client failed peer=%s", self.peer)
            self.close("internal error")
        return position

    def _process(self) -> None:
        self._process_scheduled = False
        frames = self._frames
        budget = FRAMES_PER_CALLBACK_MAX
        try:
            while frames and self._paused_by & ~_PAUSED_BY_FRAMES == 0:
                if budget == 0:
                    self._pause(_PAUSED_BY_FRAMES)
                    self._schedule()
                    return
                taken = self.take_adds(frames, budget) if self.take_adds is not None else 0
                if taken:
                    budget -= taken
                else:
                    budget -= 1
                    self.receive(frames.popleft())
        except (BookieFrameError, DecodeError, struct_error) as error:
            self.close(f"not a request: {error}")
            return
        except Exception:
            _logger.exception("a request of a bookie's client failed peer=%s", self.peer)
            self.close("internal error")
            return
        if not frames:
            self._resume(_PAUSED_BY_FRAMES)

    def _schedule(self) -> None:
        if not self._process_scheduled:
            self._process_scheduled = True
            self._loop.call_soon(self._process)

    def _pause(self, reason: int) -> None:
        if not self._paused_by and not self.closed:
            self._transport.pause_reading()
        self._paused_by |= reason

    def _resume(self, reason: int) -> None:
        if not self._paused_by & reason:
            return
        self._paused_by &= ~reason
        if self.closed:
            return
        if not self._paused_by:
            self._transport.resume_reading()
        if self._frames and self._paused_by & ~_PAUSED_BY_FRAMES == 0:
            self._schedule()

    # ---- Output

    def write(self, data: bytes) -> None:
        """Append to the output. Nothing is kept for a peer that is gone."""
        if self.closed:
            return
        self._output.append(data)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_turn)

    def write_data(self, pieces: Sequence[bytes]) -> None:
        """Append one frame with entries, in several pieces. Many of them do not wait for the end of the turn: the transport
        has to say when it is full."""
        if self.closed:
            return
        self._output += pieces
        self._output_bytes += sum(map(len, pieces))
        if self._output_bytes >= BOOKIE_OUTPUT_HIGH_BYTES:
            self._flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        if self.closed or not self._output:
            return
        data = b"".join(self._output)
        self._output.clear()
        self._output_bytes = 0
        self._transport.write(data)

    def pause_writing(self) -> None:
        self.output_full = True
        self._pause(_PAUSED_BY_OUTPUT)

    def resume_writing(self) -> None:
        self.output_full = False
        self._resume(_PAUSED_BY_OUTPUT)
        if not self.closed:
            self.on_room()
