"""However the network cuts a stream of frames, the same frames come out."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from magnetar.wire.pulsar.frames import FrameDecoder, FrameError, encode_frame

FRAMES = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=200)), max_size=8)


@given(FRAMES, st.lists(st.integers(0, 2000), max_size=30))
def test_any_split_gives_the_same_frames(frames: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(command, rest) for command, rest in frames)
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    decoder = FrameDecoder(1000, 100)
    found = []
    for start, end in pairwise(edges):
        found += decoder.feed(stream[start:end])
        assert decoder.buffered_bytes <= end
    assert found == frames
    assert decoder.buffered_bytes == 0


@given(st.binary(max_size=300), st.integers(1, 50))
def test_garbage_is_refused_or_waited_for_and_never_hoarded(data: bytes, step: int) -> None:
    """The same verdict for every way to cut it, and never more in memory than has arrived and could still be a frame."""
    whole = _verdict(FrameDecoder(100, 50), [data])
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    assert _verdict(FrameDecoder(100, 50), pieces) == whole


def _verdict(decoder: FrameDecoder, pieces: list[bytes]) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Frames before the first bad one in the same piece are lost with it: compare what is certain, the refusal."""
    for piece in pieces:
        try:
            decoder.feed(piece)
        except FrameError:
            return [], True
        assert decoder.buffered_bytes <= 104
    return [], False
