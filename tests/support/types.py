"""Types of the fixtures in `tests/integration/conftest.py`."""

from __future__ import annotations

from collections.abc import Callable

import pulsar

from magnetar.testing.server import ServerProcess

StartServer = Callable[..., ServerProcess]
Connect = Callable[..., pulsar.Client]
