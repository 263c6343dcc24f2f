"""Arithmetic of permits: counted in messages, saturating at the top, free to go below zero (facts 5.6).

A batch is one frame, so a consumer with one permit gets a batch of a hundred and owes 99; it is served again when its
FLOWs have paid them back.
"""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.base.limits import PERMITS_MAX


def add_permits(permits: int, granted: int) -> int:
    """`permits` after a FLOW of `granted`. Nothing is taken away by a FLOW, and the sum saturates at PERMITS_MAX."""
    if granted <= 0:
        return permits
    total = permits + granted
    return total if total < PERMITS_MAX else PERMITS_MAX


def messages_left(ack_set: Sequence[int]) -> int:
    """Messages that a delivery with these 64-bit words costs: the bits that are set, i.e. not acknowledged yet."""
    left = 0
    for word in ack_set:
        left += (word & 0xFFFF_FFFF_FFFF_FFFF).bit_count()
    return left
