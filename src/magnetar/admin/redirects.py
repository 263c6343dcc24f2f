"""307 to the broker that can answer, as Pulsar does it: method and body stay, clients follow by themselves."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.call import Call
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.namespaces.errors import NotOwnedError
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.broker.peers import ORIGINAL_PRINCIPAL_HEADER


def redirect(request: Request, to: BrokerAddress, authoritative: bool | None = None) -> Response:
    """The same request at another broker; `authoritative`: the broker there need not ask who is to answer."""
    base = to.web_service_url_tls if request.url.scheme == "https" and to.web_service_url_tls else to.web_service_url
    base = base or to.web_service_url_tls
    path = request.scope["raw_path"].decode("ascii")
    query = [part for part in request.scope["query_string"].decode("ascii").split("&") if part]
    if authoritative is not None:
        query = [part for part in query if not part.startswith("authoritative=")]
        query.append(f"authoritative={str(authoritative).lower()}")
    location = f"{base}{path}" + (f"?{'&'.join(query)}" if query else "")
    return Response(status_code=307, headers={"Location": location})


def credentials_of(call: Call) -> dict[str, str]:
    """The caller's own: other brokers check what it may do as this one has. One that showed none that could be passed on (a certificate,
    or nothing) is named to them by this broker, which never asks on its own authority for somebody else."""
    headers = call.request.headers
    passed = {name: headers[name] for name in ("authorization", ORIGINAL_PRINCIPAL_HEADER) if name in headers}
    if "authorization" in passed or call.principal is None:
        return passed
    return call.broker.peers.on_behalf_of(call.principal.role)


async def require_leader(call: Call) -> None:
    """What the load manager plans is known to the leader alone. Raises NotOwnedError with its address elsewhere, and
    ServiceNotReadyError while none is elected."""
    broker = call.broker
    leadership = broker.cluster.leadership
    if leadership.is_leader:
        return
    leader = await leadership.leader()
    address = None if leader is None else await broker.cluster.brokers.get(leader.broker_id)
    if leader is None or address is None or leader.broker_id == broker.ownership.broker_id:
        raise ServiceNotReadyError("no broker is the leader at the moment; ask again in a second")
    raise NotOwnedError("the plan", address)
