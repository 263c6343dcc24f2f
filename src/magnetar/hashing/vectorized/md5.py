"""Ketama's hash of many keys: the first word of MD5 (RFC 1321), computed for all rows of a batch at once.

About 35 ns a key where `hashlib` and a Python loop need 400. Only the first word is wanted, so the last three of the 64 steps, which
do not touch it, are left out of the last block.
"""

from __future__ import annotations

from math import sin
from typing import Final

import numpy as np
import numpy.typing as npt

from magnetar.hashing.ketama import ketama_hash
from magnetar.hashing.vectorized.batch import Hashes, KeyBatch, hash_in_batches

_WORDS: Final = 16
_BLOCK_BYTES: Final = 64
_LENGTH_WORD: Final = 14
_TRAILER_BYTES: Final = 9
"""What MD5 puts behind a message: the byte 0x80 and a 64-bit length."""
_INITIAL: Final = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476)
_SINES: Final = [int(abs(sin(step + 1)) * 2**32) & 0xFFFFFFFF for step in range(64)]
_SHIFTS: Final = [
    shift for row in ((7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21)) for shift in row * 4
]
_CONSTANTS: Final = [np.uint32(sine) for sine in _SINES]
_LEFT: Final = [np.uint32(shift) for shift in _SHIFTS]
_RIGHT: Final = [np.uint32(32 - shift) for shift in _SHIFTS]
_WORD_OF_STEP: Final = [
    (step, (5 * step + 1) % 16, (3 * step + 5) % 16, (7 * step) % 16)[step // 16] for step in range(64)
]
_STEPS_FOR_FIRST_WORD: Final = 61

_Column = npt.NDArray[np.uint32]
_State = list[_Column]
_Message = list[int | _Column]


def ketama_hashes(keys: object) -> Hashes:
    """`ketama.ketama_hash` of every key."""
    return hash_in_batches(keys, first_word, ketama_hash)


def first_word(batch: KeyBatch) -> Hashes:
    """The first word of every row's MD5."""
    if int(batch.lengths.max(initial=0)) + _TRAILER_BYTES <= _BLOCK_BYTES:
        return _compress(_initial(len(batch)), _single_block(batch), full=False)[0]
    blocks = (batch.lengths + _TRAILER_BYTES + _BLOCK_BYTES - 1) // _BLOCK_BYTES
    count = int(blocks.max())
    rows = np.arange(len(batch))
    message = batch.padded(count * _BLOCK_BYTES)
    message[rows, batch.lengths] = 0x80
    words = message.view("<u4")
    words[rows, blocks * _WORDS - 2] = (batch.lengths * 8).astype(np.uint32)
    state = _initial(len(batch))
    out = np.empty(len(batch), np.uint32)
    for block in range(count):
        columns: _Message = [np.ascontiguousarray(words[:, block * _WORDS + index]) for index in range(_WORDS)]
        state = _compress(state, columns, full=block + 1 < count)
        last = blocks == block + 1
        out[last] = state[0][last]
    return out


def _initial(rows: int) -> _State:
    return [np.full(rows, value, np.uint32) for value in _INITIAL]


def _single_block(batch: KeyBatch) -> _Message:
    """The padded message of rows that fit one block. A word that is the same in all rows is a plain number and costs nothing."""
    if batch.uniform is not None:
        return _uniform_block(batch.matrix, batch.uniform)
    used = int(batch.lengths.max(initial=0)) // 4 + 1
    padded = batch.padded(used * 4)
    padded[np.arange(len(batch)), batch.lengths] = 0x80
    words = padded.view("<u4")
    message: _Message = [0] * _WORDS
    for index in range(used):
        message[index] = _word(np.ascontiguousarray(words[:, index]))
    message[_LENGTH_WORD] = (batch.lengths * 8).astype(np.uint32)
    return message


def _uniform_block(matrix: npt.NDArray[np.uint8], length: int) -> _Message:
    """The block of rows of one length: whole words are read right out of the matrix, the last one is put together from bytes."""
    message: _Message = [0] * _WORDS
    rows, width = matrix.shape
    for index in range(length // 4):
        view = np.ndarray((rows,), "<u4", matrix, 4 * index, (width,))
        message[index] = _word(view.copy())
    last = np.full(rows, 0x80 << 8 * (length % 4), np.uint32)
    for place in range(length % 4):
        last |= matrix[:, length - length % 4 + place].astype(np.uint32) << np.uint32(8 * place)
    message[length // 4] = _word(last)
    message[_LENGTH_WORD] = length * 8
    return message


def _word(column: _Column) -> int | _Column:
    first = int(column[0])
    return first if first == int(column[-1]) and bool((column == first).all()) else column


def _compress(state: _State, message: _Message, *, full: bool) -> _State:
    """One block. Without `full` only the first word of the new state is right."""
    begun, columns = _common_prefix(state, message)
    a, b, c, d = columns
    scratch, pair = np.empty_like(a), np.empty_like(a)
    # Outputs are given by position: with some 600 calls a batch, the parsing of `out=` shows.
    for step in range(begun, 64 if full else _STEPS_FOR_FIRST_WORD):
        _mix(step, b, c, d, scratch, pair)
        word = message[_WORD_OF_STEP[step]]
        if isinstance(word, int):
            np.add(a, np.uint32((_SINES[step] + word) & 0xFFFFFFFF), a)
        else:
            np.add(a, word, a)
            np.add(a, _CONSTANTS[step], a)
        np.add(a, scratch, a)
        np.left_shift(a, _LEFT[step], scratch)
        np.right_shift(a, _RIGHT[step], a)
        np.bitwise_or(a, scratch, a)
        np.add(a, b, a)
        a, b, c, d = d, a, b, c
    if not full:
        # Three steps short of the end the names are turned by three: `b` holds what becomes the first word.
        return [b + state[0], b, c, d]
    return [value + before for value, before in zip((a, b, c, d), state, strict=True)]


def _common_prefix(state: _State, message: _Message) -> tuple[int, _State]:
    """How many first steps are the same for all rows, and the columns after them: keys often begin alike.

    Words 0 to 15 enter steps 0 to 15, so that steps before the first word that differs take plain numbers.
    """
    first = [int(column[0]) for column in state]
    steps = next((index for index, word in enumerate(message) if not isinstance(word, int)), _WORDS)
    if steps == 0 or any(bool((column != value).any()) for column, value in zip(state, first, strict=True)):
        return 0, [column.copy() for column in state]
    a, b, c, d = first
    for step in range(steps):
        word = message[step]
        assert isinstance(word, int)
        total = (a + (d ^ (b & (c ^ d))) + word + _SINES[step]) & 0xFFFFFFFF
        shift = _SHIFTS[step]
        turned = ((total << shift) | (total >> (32 - shift))) + b & 0xFFFFFFFF
        a, b, c, d = d, turned, b, c
    return steps, [np.full_like(state[0], value) for value in (a, b, c, d)]


def _mix(step: int, b: _Column, c: _Column, d: _Column, out: _Column, pair: _Column) -> None:
    """The round function of RFC 1321 (F, G, H or I) in the forms with the fewest passes."""
    turn = step // 16
    if turn == 0:
        np.bitwise_xor(c, d, out)
        np.bitwise_and(out, b, out)
        np.bitwise_xor(out, d, out)
    elif turn == 1:
        np.bitwise_xor(b, c, out)
        np.bitwise_and(out, d, out)
        np.bitwise_xor(out, c, out)
    elif turn == 2 and step % 2 == 0:
        # b ^ c is c ^ d of the next step, which needs one pass then.
        np.bitwise_xor(b, c, pair)
        np.bitwise_xor(pair, d, out)
    elif turn == 2:
        np.bitwise_xor(pair, b, out)
    else:
        np.invert(d, out)
        np.bitwise_or(out, b, out)
        np.bitwise_xor(out, c, out)
