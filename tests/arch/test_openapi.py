"""The OpenAPI document and the live routes are the same set, both ways."""

from __future__ import annotations

import re
from typing import Any

import pytest

from magnetar.admin.documents.policies import POLICY_TYPES
from magnetar.admin.openapi import document
from magnetar.admin.operation import OPERATIONS
from magnetar.admin.policy_rows import POLICY_ROWS
from magnetar.admin.routes import all_routes
from magnetar.broker.naming import DOMAINS


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return document(all_routes())


def operations(described: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, about)
        for path, methods in described["paths"].items()
        for method, about in methods.items()
    ]


def test_every_route_says_what_it_takes_and_answers() -> None:
    silent = sorted(f"{route.method} {route.path}" for route in all_routes() if route.handler not in OPERATIONS)
    assert silent == [], "write @documented(body=..., answer=..., query=...) above the handler (admin/operation.py)"


def test_every_route_is_described_and_every_description_is_served(described: dict[str, Any]) -> None:
    live = {(route.method, route.path) for route in all_routes()}
    told = {
        (method, path.replace("{domain}", domain))
        for method, path, _ in operations(described)
        for domain in (DOMAINS if "{domain}" in path else ("",))
    }
    assert told == live


def test_both_domains_are_described_by_one_operation() -> None:
    """What is collapsed into one path must be the same on both."""
    handlers: dict[tuple[str, str], set[str]] = {}
    for route in all_routes():
        handlers.setdefault((route.method, route.template), set()).add(str(OPERATIONS[route.handler]))
    assert [where for where, found in handlers.items() if len(found) > 1] == []


def test_the_document_is_well_formed(described: dict[str, Any]) -> None:
    assert described["openapi"] == "3.1.0"
    ids = [about["operationId"] for _, _, about in operations(described)]
    assert len(ids) == len(set(ids))
    for method, path, about in operations(described):
        place = f"{method} {path}"
        named = [item["name"] for item in about["parameters"] if item["in"] == "path"]
        assert named == re.findall(r"\{(\w+)\}", path), place
        assert about["summary"].endswith((".", "?", "!", ")")), place
        assert {"400", "401", "403"} <= set(about["responses"]), place
        assert (method in ("GET", "DELETE")) <= ("requestBody" not in about or "analyzeBacklog" in path), place
    text = str(described)
    for kind, name in re.findall(r"#/components/(\w+)/(\w+)", text):
        assert name in described["components"][kind]


def test_every_policy_has_a_type() -> None:
    assert {row.name for row in POLICY_ROWS} == set(POLICY_TYPES)
