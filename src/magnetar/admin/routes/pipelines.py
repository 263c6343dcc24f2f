"""Pipelines that read this cluster's topics: what their drivers report, and why a view is as fresh as it is. Ours; Pulsar has neither."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call
from magnetar.admin.documents.explain import Explanation, ReportTaken
from magnetar.admin.errors import BadRequestError, ForbiddenError, NotFoundError
from magnetar.admin.operation import documented
from magnetar.admin.routing import ADMIN, Route
from magnetar.base.errors import InvalidArgumentError, MagnetarError
from magnetar.broker.auth.decide import Access, Resource
from magnetar.broker.explain.view import Question, explain_view, key_of, places_of_key, view_named
from magnetar.broker.naming import TopicName
from magnetar.broker.pipelines.registry import NAME, Registered
from magnetar.broker.pipelines.report import PipelineReport
from magnetar.hashing.errors import HashingError

PIPELINES = f"{ADMIN}/pipelines"


@documented(answer=list[PipelineReport])
async def list_pipelines(call: Call) -> Response:
    """The last report of each pipeline all of whose topics the caller may produce to or consume from."""
    found = [each for each in await call.broker.pipelines.all() if await _sees(call, each)]
    return as_json([msgspec.to_builtins(_told(each)) for each in found])


@documented(answer=PipelineReport, errors=(404,))
async def get_pipeline(call: Call) -> Response:
    """The last report of a pipeline: state, sources with positions and watermarks, views with their stages, and the vnode mapping. Its
    driver reports each two seconds while somebody asks, else each twenty."""
    found = await _registered(call, call.params["pipeline"])
    await call.broker.pipelines.note_look(found.report.name)
    return as_json(msgspec.to_builtins(_told(found)))


@documented(body=PipelineReport, answer=ReportTaken, errors=(404, 405, 412))
async def report(call: Call) -> Response:
    """What a driver tells of itself. It needs the right to consume from all topics that it names; the name belongs to the role that used it
    first. `followed`: somebody looks at the moment, so report often."""
    name = call.params["pipeline"]
    told = await call.body_as(PipelineReport)
    if not NAME.fullmatch(name) or told.name != name:
        raise BadRequestError(
            f"'{name[:100]}' and the report's '{told.name[:100]}' must be the same name of letters, digits, '.', '_' and '-'"
        )
    try:
        told.vnodes.validate()
    except (HashingError, AssertionError) as error:
        raise BadRequestError(f"mapping: {error}") from None
    for topic in sorted(told.topics()):
        await _check(call, Access.CONSUME, topic)
    role = call.principal.role if call.principal is not None else ""
    superuser = call.broker.security.authorizer.is_superuser(call.principal)
    followed = await call.broker.pipelines.put(told, role, may_replace=superuser)
    return as_json({"followed": followed})


@documented(errors=(404,))
async def remove_pipeline(call: Call) -> Response:
    """Forget what a pipeline reported; one that runs reports again. For the role that registered it, and superusers."""
    found = await _registered(call, call.params["pipeline"])
    role = call.principal.role if call.principal is not None else ""
    if role != found.role and not call.broker.security.authorizer.is_superuser(call.principal):
        raise ForbiddenError(f"pipeline {found.report.name} was registered by another role")
    await call.broker.pipelines.remove(found.report.name)
    return done()


@documented(
    answer=Explanation,
    query={"pipeline": str, "view": str, "key": str, "ifUnits": int},
    required=("pipeline", "view"),
    errors=(404,),
)
async def view(call: Call) -> Response:
    """What a view holds of its topics, how stale it is and why, as its driver reported last. `key`, as VALUE, or as COLUMN=VALUE given for
    each column: its vnode and unit. `ifUnits`: which vnodes another number of units would move. Rows are not told: a broker has none."""
    for needed in ("pipeline", "view"):
        if not call.query(needed):
            raise BadRequestError(f"name the {needed}: &{needed}=NAME")
    found = await _registered(call, call.query("pipeline"))
    units = call.query_number("ifUnits", 0)
    told = _told(found)
    try:
        name = view_named(told, call.query("view"))
    except InvalidArgumentError as error:
        raise NotFoundError(str(error)) from None
    try:
        key = key_of(told, name, call.request.query_params.getlist("key"))
        answer = explain_view(told, Question(name, key, units), call.broker.clock.now_ms())
    except InvalidArgumentError as error:
        raise BadRequestError(str(error)) from None
    return as_json(answer.document())


async def places_of(call: Call, topic: TopicName, key: str) -> list[dict[str, Any]]:
    """Vnode and unit of a message's key in each stage of the pipelines that the caller may see and that read the topic."""
    whole = str(topic.partitioned_name)
    found = [each for each in await call.broker.pipelines.all() if each.report.sources_of(whole)]
    return [row for each in found if await _sees(call, each) for row in places_of_key(each.report, whole, key)]


async def _registered(call: Call, name: str) -> Registered:
    """Raises NotFoundError, also for what the caller may not see: a probe learns nothing."""
    found = await call.broker.pipelines.get(name) if NAME.fullmatch(name) else None
    if found is None or not await _sees(call, found):
        raise NotFoundError(
            f"no pipeline '{name[:100]}' reports to this cluster; a driver does whose sources have admin.url"
        )
    return found


async def _sees(call: Call, found: Registered) -> bool:
    try:
        for topic in sorted(found.report.topics()):
            await _check(call, Access.LOOKUP, topic)
    except MagnetarError:
        return False
    return True


async def _check(call: Call, access: Access, topic: str) -> None:
    """Raises AuthorizationError."""
    security = call.broker.security
    if security.authentication is not None:
        await security.authorizer.check(call.principal, access, Resource.of_topic(TopicName.parse(topic)))


def _told(found: Registered) -> PipelineReport:
    """The report with the time at which it came, by this cluster's clock."""
    return msgspec.structs.replace(found.report, updated_ms=found.heard_ms)


ROUTES = (
    Route("GET", PIPELINES, Access.SOMEWHERE, list_pipelines),
    Route("GET", f"{PIPELINES}/{{pipeline}}", Access.SOMEWHERE, get_pipeline),
    Route("PUT", f"{PIPELINES}/{{pipeline}}", Access.SOMEWHERE, report),
    Route("DELETE", f"{PIPELINES}/{{pipeline}}", Access.SOMEWHERE, remove_pipeline),
    Route("GET", f"{ADMIN}/explain/view", Access.SOMEWHERE, view),
)
