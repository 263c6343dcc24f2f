"""Bookies: which the cluster knows, and in which racks they stand."""

from __future__ import annotations

from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call
from magnetar.admin.documents.cluster import BookieInfo, BookiesClusterInfo
from magnetar.admin.errors import NotFoundError
from magnetar.admin.operation import documented
from magnetar.admin.routing import ADMIN, Route
from magnetar.base.errors import InvalidArgumentError
from magnetar.bookkeeper.rack_mapping import delete_rack, read_mapping, set_rack
from magnetar.bookkeeper.service_info import check_bookie_id
from magnetar.broker.auth.decide import Access
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.metadata import paths

RACKS = f"{ADMIN}/bookies/racks-info"
RACK = f"{RACKS}/{{bookie}}"


@documented(answer=BookiesClusterInfo)
async def every(call: Call) -> Response:
    """All bookies the cluster knows, running or not."""
    metadata = call.broker.metadata
    names = set(await metadata.children(paths.COOKIES_PATH))
    for path in (paths.AVAILABLE_BOOKIES_PATH, paths.READ_ONLY_BOOKIES_PATH):
        names |= set(await metadata.children(path))
    names.discard(paths.READ_ONLY_BOOKIES_PATH.rpartition("/")[2])
    return as_json({"bookies": [{"bookieId": name} for name in sorted(names)]})


@documented(answer=dict[str, dict[str, BookieInfo]])
async def racks(call: Call) -> Response:
    """Racks of all bookies: group -> bookie -> rack."""
    return as_json(await read_mapping(call.broker.metadata))


@documented(answer=BookieInfo)
async def rack(call: Call) -> Response:
    """Rack of one bookie."""
    name = call.params["bookie"]
    for members in (await read_mapping(call.broker.metadata)).values():
        if name in members:
            return as_json(members[name])
    raise NotFoundError(f"Bookie address not found: {name}")


@documented("Say where a bookie stands.", body=BookieInfo, query={"group": str})
async def put_rack(call: Call) -> Response:
    group, info = call.query("group"), await call.body_as(BookieInfo)
    if not group:
        raise PreconditionFailedError("Bookie 'group' parameters is missing")
    try:
        check_bookie_id(call.params["bookie"])
        await set_rack(
            call.broker.metadata, call.params["bookie"], info.rack, group=group, hostname=info.hostname or ""
        )
    except InvalidArgumentError as error:
        raise PreconditionFailedError(str(error)) from error
    return done()


@documented("Forget where a bookie stands.")
async def remove_rack(call: Call) -> Response:
    if not await delete_rack(call.broker.metadata, call.params["bookie"]):
        raise NotFoundError(f"Bookie address not found: {call.params['bookie']}")
    return done()


ROUTES = (
    Route("GET", f"{ADMIN}/bookies/all", Access.SUPERUSER, every),
    Route("GET", RACKS, Access.SUPERUSER, racks),
    Route("GET", RACK, Access.SUPERUSER, rack),
    Route("POST", RACK, Access.SUPERUSER, put_rack),
    Route("DELETE", RACK, Access.SUPERUSER, remove_rack),
)
