"""Servers and clients for the crash tests: the same fixtures as the integration tests have."""

from tests.integration.conftest import connect, start_server

__all__ = ["connect", "start_server"]
