"""Traces as a person reads them: by the command, or over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import requests
from click.testing import CliRunner

from magnetar.cli.main import cli
from magnetar.testing.server import ServerProcess
from tests.support.waiting import wait_until

Document = dict[str, Any]


class Tracer:
    """Of one broker's admin API."""

    def __init__(self, http_url: str) -> None:
        self.http_url = http_url

    def of(self, topic: str, trace_id: str = "") -> list[Document]:
        """Those that are kept; none where the server knows none."""
        query = {"topic": topic} | ({"id": trace_id} if trace_id else {})
        answer = requests.get(f"{self.http_url}/admin/v2/trace", query, timeout=60)
        if answer.status_code == 404:
            return []
        assert answer.status_code == 200, answer.text
        found: list[Document] = answer.json()
        return found

    def events(self, topic: str, trace_id: str) -> list[str]:
        """Of the one message with this trace: `event consumer` or `event cluster`."""
        found = self.of(topic, trace_id)
        assert len(found) <= 1
        return [_short(event) for trace in found for event in trace["events"]]

    def sees(self, topic: str, trace_id: str, wanted: Sequence[str]) -> list[str]:
        """Wait until all of these events were seen in this order, among others; all there are."""

        def seen() -> list[str] | None:
            events = self.events(topic, trace_id)
            left = iter(events)
            return events if all(each in left for each in wanted) else None

        try:
            return wait_until(seen)
        except AssertionError:
            raise AssertionError(f"expected {wanted}, found {self.events(topic, trace_id)}") from None

    def command(self, *args: str) -> list[Document]:
        """What `magnetar trace` prints where no terminal is."""
        result = CliRunner().invoke(cli, ["trace", *args, "--admin-url", self.http_url], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        found: list[Document] = json.loads(result.output)
        return found


def _short(event: Document) -> str:
    name = event["consumer"] or event["cluster"] or ""
    return f"{event['event']} {name}".strip()


@pytest.fixture
def tracer(server: ServerProcess) -> Tracer:
    return Tracer(server.http_url)


Connect = Callable[..., Any]
