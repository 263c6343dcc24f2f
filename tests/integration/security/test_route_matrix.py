"""Every route of the live list, as every role, over HTTP: what the table says is what happens, before body and existence count."""

from __future__ import annotations

import re

import pytest

from magnetar.admin.routes import all_routes
from magnetar.admin.routing import Route
from magnetar.broker.auth.decide import Access
from tests.integration.security.conftest import ROLES, Secured
from tests.support.tokens import token

EVERYBODY = frozenset(ROLES)
ADMINS = frozenset({"root", "tenant-admin"})
ALLOWED = {
    Access.OPEN: EVERYBODY,
    Access.AUTHENTICATED: EVERYBODY,
    Access.SOMEWHERE: EVERYBODY - {"stranger", "anonymous"},
    Access.METRICS: frozenset({"root"}),
    Access.SUPERUSER: frozenset({"root"}),
    Access.TENANT: ADMINS,
    Access.NAMESPACE: ADMINS | {"producer", "consumer"},
    Access.REPLICATE: {"root"},
    Access.LOOKUP: ADMINS | {"producer", "consumer", "topic-role"},
    Access.PRODUCE: ADMINS | {"producer", "topic-role"},
    Access.CONSUME: ADMINS | {"consumer", "topic-role"},
}
"""For resources of tenant `t`, namespace `t/ns` and topic `one`: written by hand, not computed by what is tested."""

NAMES = {
    "tenant": "t",
    "namespace": "ns",
    "bundle": "0x00000000_0x40000000",
    "topic": "one",
    "subscription": "sub",
    "role": "somebody",
}
ROUTES = sorted(all_routes(), key=lambda route: (route.path, route.method))


def path_of(route: Route, **names: str) -> str:
    path = route.path
    for name, value in (NAMES | names).items():
        path = path.replace(f"{{{name}}}", value)
    path = re.sub(r"\{\w+\}", "7", path)
    if route.by_query:
        named = NAMES | names
        path += f"?topic={named['tenant']}/{named['namespace']}/{named['topic']}&subscription={named['subscription']}"
    return path


def status(secured: Secured, route: Route, role: str, **names: str) -> int:
    """A body that no handler takes: whoever is allowed gets as far as a complaint about it, or about what is not there."""
    return secured.http(route.method, path_of(route, **names), role, data=b"{").status_code


@pytest.fixture(scope="module")
def protected(secured: Secured) -> Secured:
    return secured


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_route(secured: Secured, route: Route) -> None:
    """Those that are refused first: what the others may do might take away what is asked about."""
    access = route.access
    refused = sorted(EVERYBODY - ALLOWED[access])
    for role in refused:
        assert status(secured, route, role) == 403, role
        # the same answer where nothing is: a probe learns nothing
        if "tenant" in route.path or route.by_query:
            assert status(secured, route, role, tenant="nothing", namespace="here", topic="at-all") == 403, role
    if access not in (Access.OPEN,):
        for bad in (token("root", lifetime_s=-1), token("root", secret=b"x" * 32)):
            headers = {"Authorization": f"Bearer {bad}"}
            response = secured.http(route.method, path_of(route), "anonymous", headers=headers, data=b"{")
            assert response.status_code == 401
            assert response.headers["WWW-Authenticate"].startswith("Bearer")
    if route.method == "DELETE" and route.path.count("/") <= 7:
        return  # would take away what the other cases need; that an administrator may is shown below
    if route.path.endswith("/shutdown"):
        return  # would end the server
    for role in sorted(ALLOWED[access]):
        assert status(secured, route, role) not in (401, 403, 500), role


def test_administrators_may_delete(secured: Secured) -> None:
    secured.admin("PUT", "namespaces/t/gone")
    secured.admin("PUT", "persistent/t/gone/one")
    for path, role in (
        ("persistent/t/gone/one", "tenant-admin"),
        ("namespaces/t/gone", "tenant-admin"),
    ):
        assert secured.http("DELETE", f"/admin/v2/{path}", "other-admin").status_code == 403
        assert secured.http("DELETE", f"/admin/v2/{path}", role).status_code == 204
    secured.admin("PUT", "tenants/gone", {"adminRoles": ["tenant-admin"], "allowedClusters": ["standalone"]})
    assert secured.http("DELETE", "/admin/v2/tenants/gone", "tenant-admin").status_code == 403
    assert secured.http("DELETE", "/admin/v2/tenants/gone", "root").status_code == 204


def test_an_administrator_cannot_make_itself_more(secured: Secured) -> None:
    body = {"adminRoles": ["tenant-admin"], "allowedClusters": ["standalone"]}
    for path in ("tenants/other", "tenants/t", "tenants/new"):
        for method in ("PUT", "POST"):
            assert secured.http(method, f"/admin/v2/{path}", "tenant-admin", json=body).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/admin/v2/namespaces/t%2Fns/ns/permissions",
        "/admin/v2/namespaces/other/../t/ns/permissions",
        "/admin/v2/namespaces/other/..%2ft/ns/permissions",
        "/admin/v2/namespaces/other/%2e%2e/permissions",
        "//admin//v2//namespaces//t//ns//permissions",
        "/admin/v2/namespaces/t/ns/permissions/",
        "/admin/v2/namespaces/t/ns%00/permissions",
        "/admin/v2/namespaces/T/ns/permissions",
        "/admin/v2/persistent/t%252Fns/ns/one/permissions",
    ],
)
def test_no_spelling_of_a_path_opens_it(secured: Secured, path: str) -> None:
    for role in ("stranger", "other-admin", "producer"):
        assert secured.http("GET", f"{secured.process.http_url}{path}", role).status_code in (403, 404, 412)


def test_methods_cannot_be_overridden(secured: Secured) -> None:
    for name in ("X-HTTP-Method-Override", "X-Method-Override", "X-HTTP-Method"):
        response = secured.http("GET", "/admin/v2/clusters", "stranger", headers={name: "DELETE"})
        assert response.status_code == 200
    assert secured.http("HEAD", "/admin/v2/tenants", "stranger").status_code == 403


def test_forwarded_headers_are_not_believed(secured: Secured) -> None:
    headers = {
        "X-Forwarded-For": "127.0.0.1",
        "Forwarded": "for=127.0.0.1",
        "X-Forwarded-User": "root",
        "X-Remote-User": "root",
    }
    assert secured.http("GET", "/admin/v2/tenants", "stranger", headers=headers).status_code == 403


def test_refusal_comes_before_the_body(secured: Secured) -> None:
    """100 MB are announced; the refusal does not wait for them."""
    response = secured.http(
        "POST", "/admin/v2/namespaces/t/ns/permissions/x", "stranger", headers={"Content-Length": "100000000"}
    )
    assert response.status_code == 403
