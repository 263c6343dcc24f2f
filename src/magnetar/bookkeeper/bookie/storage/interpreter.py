"""Long work on a side thread must not hold up the event loop: threads of one interpreter run one at a time."""

from __future__ import annotations

import time

_PAUSE_S = 0.0001


def hand_over() -> None:
    """Let the other threads run. A busy thread gives way by itself only every 5 ms, and the loop would wait that long each time
    it comes back from a system call; a pause of zero would mostly win the race against whoever waits."""
    time.sleep(_PAUSE_S)
