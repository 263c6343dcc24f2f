"""Beginnings of paths, and rows that exist for both domains."""

from __future__ import annotations

from magnetar.admin.routing import Handler, Route
from magnetar.broker.auth.decide import Access
from magnetar.broker.naming import DOMAINS

ADMIN = "/admin/v2"
NAMESPACE = f"{ADMIN}/namespaces/{{tenant}}/{{namespace}}"


def both_domains(method: str, path: str, access: Access, handler: Handler) -> tuple[Route, ...]:
    """`path` below `/admin/v2/{persistent|non-persistent}/tenant/namespace`."""
    return tuple(
        Route(method, f"{ADMIN}/{domain}/{{tenant}}/{{namespace}}{path}", access, handler, {"domain": domain})
        for domain in DOMAINS
    )
