"""Tenants, their namespaces, and a namespace's topics a page at a time."""

from __future__ import annotations

from urllib.parse import urlencode

from magnetar.admin.console.errors import RefusedError
from magnetar.admin.console.page import Page, Redirect, page
from magnetar.admin.console.visit import Visit, path_of, topic_page
from magnetar.admin.routes.overview import SORTS
from magnetar.broker.naming import DOMAINS, PERSISTENT

NAMES_SHOWN = 100
"""Tenants or namespaces of one page."""

TOPICS_SHOWN = 50


async def tenants(visit: Visit) -> Page | Redirect:
    wanted = visit.query("open").strip()
    if wanted:
        return Redirect(f"/console/tenants{path_of(*[part for part in wanted.split('/') if part][:2])}")
    try:
        names = sorted(await visit.get("/tenants"))
    except RefusedError as error:
        if error.answer_status != 403:
            raise
        return Page("overview_of_role.html", "Tenants", {"reason": str(error)})
    shown, first = window(names, visit)
    return Page("tenants.html", "Tenants", {**paging(visit, names, first), "tenants": shown, "total": len(names)})


async def tenant(visit: Visit) -> Page:
    name = visit.params["tenant"]
    about = await visit.maybe(path_of("tenants", name))
    names = sorted(await visit.get(path_of("namespaces", name)))
    shown, first = window(names, visit)
    values = {**paging(visit, names, first), "tenant": name, "about": about, "namespaces": shown, "total": len(names)}
    return Page("tenant.html", name, values, (("Tenants", "/console/tenants"),))


def window(names: list[str], visit: Visit) -> tuple[list[str], int]:
    """One page of a list, filtered by the query's `filter`, from its `first` on."""
    wanted, text = visit.query("filter"), visit.query("first", "0")
    first = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    found = [name for name in names if wanted in name]
    names[:] = found
    return found[first : first + NAMES_SHOWN], first


def paging(visit: Visit, names: list[str], first: int) -> dict[str, object]:
    keep = {"filter": visit.query("filter")}
    behind = first + NAMES_SHOWN
    return {
        "filter": keep["filter"],
        "first": first,
        "next": urlencode({**keep, "first": behind}) if behind < len(names) else "",
        "before": urlencode({**keep, "first": max(0, first - NAMES_SHOWN)}) if first else "",
    }


async def namespace(visit: Visit) -> Page:
    sort, domain = visit.query("sort", "name"), visit.query("domain", PERSISTENT)
    sort = sort if sort in SORTS else "name"
    domain = domain if domain in DOMAINS else PERSISTENT
    query = {"sort": sort, "domain": domain, "filter": visit.query("filter"), "limit": TOPICS_SHOWN}
    found = await visit.get(
        path_of("namespaces", *visit.namespace.split("/"), "topicsPage"), **query, after=visit.query("after")
    )
    kept = {"domain": domain, "filter": query["filter"]}
    values = {
        "namespace": visit.namespace,
        "tenant": visit.params["tenant"],
        "page": found,
        "sort": sort,
        "domain": domain,
        "filter": query["filter"],
        "after": visit.query("after"),
        "links": {each: "?" + urlencode({**kept, "sort": each}) for each in SORTS},
        "next": "?" + urlencode({**kept, "sort": sort, "after": found["next"]}) if found["next"] else "",
        "start": "?" + urlencode({**kept, "sort": sort}),
    }
    return Page("namespace.html", visit.namespace, values, crumbs_to(visit)[:-1])


async def go_to(visit: Visit) -> Redirect:
    """A topic by its name, complete or short."""
    name = visit.query("topic").strip()
    return Redirect(
        topic_page(
            name
            if "://" in name
            else f"persistent://{name}"
            if name.count("/") == 2
            else f"persistent://public/default/{name}"
        )
    )


def crumbs_to(visit: Visit) -> tuple[tuple[str, str], ...]:
    """The pages above one below a namespace, with that of the namespace."""
    tenant_name, name = visit.params["tenant"], visit.params["namespace"]
    return (
        ("Tenants", "/console/tenants"),
        (tenant_name, f"/console/tenants{path_of(tenant_name)}"),
        (name, f"/console/tenants{path_of(tenant_name, name)}"),
    )


PAGES = (
    page("GET", "/tenants", tenants),
    page("GET", "/tenants/{tenant}", tenant),
    page("GET", "/tenants/{tenant}/{namespace}", namespace),
    page("GET", "/go", go_to),
)
