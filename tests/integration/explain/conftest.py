"""Asks why, in the two ways of a person: over HTTP, and by the command; both must name the cause within a second."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import requests
from click.testing import CliRunner

from magnetar.cli.main import cli
from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api
from tests.support.waiting import wait_until

ANSWER_S_MAX = 1.0
"""A hundred times what an answer takes."""


class Explainer:
    """`server`: any that has an admin API at `http_url`."""

    def __init__(self, http_url: str) -> None:
        self.http_url = http_url

    def ask(self, kind: str, **query: Any) -> dict[str, Any]:
        """The document, over HTTP. The quickest of a few answers counts: what else the machine does only ever adds to it."""
        for left in reversed(range(5)):
            began_s = time.monotonic()
            answer = requests.get(f"{self.http_url}/admin/v2/explain/{kind}", query, timeout=60)
            took_s = time.monotonic() - began_s
            assert answer.status_code == 200, answer.text
            if took_s < ANSWER_S_MAX:
                break
            assert left, f"an answer took {took_s:.1f} s"
        document: dict[str, Any] = answer.json()
        assert set(document) == {"subject", "verdict", "moving", "reasons", "details"}
        return document

    def command(self, *args: str, as_json: bool = False) -> str:
        """What `magnetar explain` prints."""
        arguments = ["explain", *args, "--admin-url", self.http_url, *(["--json"] if as_json else [])]
        result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def subscription(self, topic: str, name: str = "sub") -> dict[str, Any]:
        return self.ask("subscription", topic=topic, subscription=name)

    def finds(self, topic: str, code: str, moving: bool | None, name: str = "sub") -> dict[str, Any]:
        """Wait until the cause of a subscription is `code`, the first one named, then hold the command against it; the reason."""

        def found() -> dict[str, Any] | None:
            document = self.subscription(topic, name)
            first = document["reasons"][0]["code"] if document["reasons"] else ""
            return document if first == code and document["moving"] is moving else None

        document = wait_until(found, what=f"{code}: {self.subscription(topic, name)}")
        shown = self.command("subscription", name, "--topic", topic)
        assert shown.splitlines()[0]
        assert f"\n{code}" in shown
        told = json.loads(self.command("subscription", name, "--topic", topic, as_json=True))
        assert told["reasons"][0]["code"] == code
        assert told["subject"] == {"kind": "subscription", "topic": topic, "subscription": name}
        reason: dict[str, Any] = document["reasons"][0]
        assert reason["text"].endswith(".")
        assert reason["change"].endswith(".")
        return reason


@pytest.fixture
def explain(server: ServerProcess) -> Explainer:
    return Explainer(server.http_url)


@pytest.fixture
def api(server: ServerProcess) -> Api:
    return Api(server)


Explaining = Callable[[ServerProcess], Explainer]
