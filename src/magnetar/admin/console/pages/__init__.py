"""One file for each kind of page: its rows in `PAGES`, and functions that ask the admin API for what the template shows."""

from __future__ import annotations

from collections.abc import Iterator

from magnetar.admin.console.pages import (
    bundles,
    explain,
    messages,
    namespaces,
    overview,
    pipelines,
    policies,
    regions,
    schemas,
    subscriptions,
    topics,
    traces,
)
from magnetar.admin.routing import Route

MODULES = (
    overview,
    namespaces,
    policies,
    bundles,
    topics,
    messages,
    subscriptions,
    schemas,
    pipelines,
    regions,
    explain,
    traces,
)


def all_pages() -> Iterator[Route]:
    """Every row of every page."""
    for module in MODULES:
        yield from module.PAGES
