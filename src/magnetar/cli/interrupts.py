"""Ctrl-C while modules are imported. Imports only the standard library: it is imported before anything else."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_end_the_process() -> Iterator[None]:
    """Within the block, SIGINT ends the process at once instead of raising KeyboardInterrupt.

    An exception in the middle of an import is not reliable: Python and extension modules turn it into other ones (a RuntimeError of
    `__set_name__`, an ImportError), and Ctrl-C during the start would print a traceback. A signal that is ignored stays ignored.
    """
    changed = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if changed:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if changed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
