"""What clients may read of errors."""

from __future__ import annotations

import pytest

from magnetar.base.errors import BrokerError, DiskFullError, StorageError, client_text


def test_text_of_the_disk_stays_here() -> None:
    failure = BrokerError("topic not loaded")
    failure.__cause__ = OSError(28, "No space left on device", "/var/lib/magnetar/journal")
    assert client_text(failure) == StorageError.text_for_clients
    wrapped = BrokerError("topic not loaded")
    wrapped.__context__ = DiskFullError("/var/lib/magnetar is full")
    assert client_text(wrapped) == DiskFullError.text_for_clients
    assert client_text(BrokerError("no such topic")) == "no such topic"


@pytest.mark.timeout(10)
def test_a_circle_of_contexts_has_an_end() -> None:
    """One error object that several requests wait for is raised again and again, each time in another context."""
    first, second = BrokerError("first"), BrokerError("second")
    first.__context__, second.__context__ = second, first
    assert client_text(first) == "first"
