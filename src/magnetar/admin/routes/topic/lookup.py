"""Lookup over HTTP: what clients with an http:// service URL ask before they connect."""

from __future__ import annotations

from starlette.responses import Response

from magnetar.admin.answers import as_json, text
from magnetar.admin.call import Call
from magnetar.admin.documents.topics import LookupResult
from magnetar.admin.operation import TEXT, documented
from magnetar.admin.redirects import redirect
from magnetar.admin.routing import Route
from magnetar.broker.auth.decide import Access
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.naming import DOMAINS

LISTENER_HEADER = "x-pulsar-listenername"


@documented(
    "Where a topic is served. All keys are always present.",
    answer=LookupResult,
    query={"authoritative": bool, "listenerName": str},
)
async def broker_of(call: Call) -> Response:
    """`brokerUrlTls` is always present: the C++ client crashes without it."""
    name, broker = call.topic, call.broker
    listener = call.query("listenerName") or call.request.headers.get(LISTENER_HEADER)
    if listener:
        raise NotAllowedError(f"the broker do not have {listener} listener")
    found = await broker.lookup.find(name, call.flag("authoritative"))
    if found.redirect:
        return redirect(call.request, found.address, authoritative=found.authoritative)
    address = found.address
    return as_json(
        {
            "brokerUrl": address.service_url,
            "brokerUrlTls": address.service_url_tls,
            "brokerUrlSsl": address.service_url_tls,
            "httpUrl": address.web_service_url,
            "httpUrlTls": address.web_service_url_tls,
            "nativeUrl": address.service_url,
        }
    )


@documented(answer=str, media=TEXT)
async def bundle_of(call: Call) -> Response:
    """The hash range that the topic falls into."""
    name = call.topic
    await call.broker.namespaces.policies(name.namespace_name, for_topic=True)
    return text((await call.broker.ownership.bundle_of(name)).range)


_TOPIC = "/lookup/v2/topic/{domain}/{{tenant}}/{{namespace}}/{{topic}}"

ROUTES = tuple(
    Route("GET", f"{_TOPIC.format(domain=domain)}{suffix}", Access.LOOKUP, handler, {"domain": domain})
    for domain in DOMAINS
    for suffix, handler in (("", broker_of), ("/bundle", bundle_of))
)
