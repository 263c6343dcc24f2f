"""Settings that change while the broker runs: on every broker of the cluster, and for good."""

from __future__ import annotations

from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call
from magnetar.admin.operation import documented
from magnetar.admin.routes.brokers import BROKERS
from magnetar.admin.routing import Route
from magnetar.broker.auth.decide import Access
from magnetar.broker.dynamic_configuration import FIELDS

CONFIGURATION = f"{BROKERS}/configuration"


@documented(answer=list[str])
async def names(call: Call) -> Response:
    """Names of the settings that can be changed."""
    return as_json(sorted(FIELDS))


@documented(answer=dict[str, str])
async def values(call: Call) -> Response:
    """What has been changed, as texts."""
    return as_json(call.broker.dynamic.values)


@documented(answer=dict[str, str])
async def runtime(call: Call) -> Response:
    """Every setting with the value that holds now, as texts. Secrets are hidden."""
    return as_json({**call.admin.settings, **call.broker.dynamic.values})


@documented()
async def put(call: Call) -> Response:
    """Change a setting; loaded topics follow before the answer leaves. 412 for other settings and for wrong values."""
    await call.broker.dynamic.put(call.params["key"], call.params["value"])
    return done()


@documented()
async def delete(call: Call) -> Response:
    """Back to what the broker was started with."""
    await call.broker.dynamic.remove(call.params["key"])
    return done()


ROUTES = (
    Route("GET", CONFIGURATION, Access.SUPERUSER, names),
    Route("GET", f"{CONFIGURATION}/values", Access.SUPERUSER, values),
    Route("GET", f"{CONFIGURATION}/runtime", Access.SUPERUSER, runtime),
    Route("POST", f"{CONFIGURATION}/{{key}}/{{value}}", Access.SUPERUSER, put),
    Route("DELETE", f"{CONFIGURATION}/{{key}}", Access.SUPERUSER, delete),
)
