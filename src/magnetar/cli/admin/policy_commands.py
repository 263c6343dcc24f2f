"""`magnetar namespaces` and `magnetar topicPolicies`: set-, get- and remove- for each policy, made of the admin API's own rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import click

from magnetar.admin.policy_rows import POLICY_ROWS, PolicyRow
from magnetar.broker.naming import NamespaceName
from magnetar.cli.admin.http import admin_url_option, request, topic_path
from magnetar.cli.admin.policy_flags import POLICY_COMMANDS, SECONDS, SIZE, Flag, Switch
from magnetar.cli.output import (
    echo_text,
    emit,
    emit_done,
    emit_record,
    json_option,
    output_options,
    print_json,
    shown_options,
)

UNSET = "not set"


@dataclass(frozen=True, slots=True)
class Level:
    """One of the two groups: how its argument becomes a path, and which options of their own its commands have."""

    argument: str
    path: Callable[[str], str]
    is_topic: bool


NAMESPACE = Level("namespace", lambda text: f"namespaces/{NamespaceName.parse(text)}", False)
TOPIC = Level("topic", topic_path, True)


@click.group("namespaces")
def namespaces_group() -> None:
    """Manage namespaces (tenant/namespace) and their policies, which apply to topics without their own."""


@click.group("topicPolicies")
def topic_policies_group() -> None:
    """Show, set and remove policies of a topic, which override its namespace's. Partitions share those of their topic."""


@namespaces_group.command("policies")
@click.argument("namespace")
@admin_url_option
@output_options
def policies_command(namespace: str, admin_url: str, as_json: bool) -> None:
    """Show all policies that are set for NAMESPACE, as Pulsar's document."""
    document = request("GET", admin_url, NAMESPACE.path(namespace)).json()
    emit_record({name: document[name] for name in sorted(document)}, as_json=as_json, title=namespace)


def _query(level: Level, is_global: bool, **more: Any) -> str:
    pairs = {name: value for name, value in more.items() if value is not None}
    if level.is_topic and is_global:
        pairs["isGlobal"] = "true"
    return "?" + "&".join(f"{name}={quote(str(value), safe='')}" for name, value in pairs.items()) if pairs else ""


def _command(
    group: click.Group, level: Level, name: str, help: str, function: Callable[..., None], *params: click.Parameter
) -> None:
    """`function(path, admin_url, is_global, **flags)` as a command of the group."""

    shows = any(param.name == "as_json" for param in params)

    def run(admin_url: str, is_global: bool = False, **flags: Any) -> None:
        target = flags.pop(level.argument)
        as_json = False if shows else flags.pop("as_json")
        function(level.path(target), admin_url=admin_url, is_global=is_global, **flags)
        emit_done(as_json, updated=target)

    command = click.command(name, help=help)(admin_url_option(run if shows else json_option(run)))
    extra = [
        click.Option(["-g", "--global", "is_global"], is_flag=True, help="Use the policy that applies to all clusters.")
    ]
    command.params = [click.Argument([level.argument]), *params, *(extra if level.is_topic else []), *command.params]
    group.add_command(command)


def _option(place: int, flag: Flag | Switch) -> click.Option:
    if isinstance(flag, Switch):
        return click.Option([f"value_{place}", *flag.names], help="Whether it is enabled.", default=None)
    required = flag.default is ...
    default = None if required else flag.default
    return click.Option(
        [f"value_{place}", *flag.names],
        type=flag.type,
        required=required,
        default=default,
        show_default=default is not None,
        help=flag.help,
    )


def _body(flags: tuple[Flag | Switch, ...], values: dict[str, Any]) -> Any:
    given = {flag.field: values[f"value_{place}"] for place, flag in enumerate(flags)}
    for flag in flags:
        if isinstance(flag, Switch) and given[flag.field] is None:
            raise click.UsageError(f"say one of {flag.names[1].replace('/', ', ')}")
    if set(given) == {""}:
        return given[""]
    return {field: value for field, value in given.items() if value is not None}


def _add(group: click.Group, level: Level, row: PolicyRow) -> None:
    commands = POLICY_COMMANDS.get(row.name)
    noun = (commands.topic if level.is_topic else commands.namespace) if commands is not None else ""
    if commands is None or not noun:
        return
    leaf = row.topic if level.is_topic else row.namespace
    method = row.topic_setter if level.is_topic else row.namespace_setter
    flags, words = commands.flags, noun.replace("-", " ")

    def get(path: str, admin_url: str, is_global: bool, as_json: bool, applied: bool = False, leaf: str = leaf) -> None:
        query = _query(level, is_global, applied="true" if applied else None)
        show(request("GET", admin_url, f"{path}/{leaf}{query}").json(), as_json, words)

    def put(path: str, admin_url: str, is_global: bool, leaf: str = leaf, **values: Any) -> None:
        body = _body(flags, values)
        if level.is_topic and row.query:
            request(method, admin_url, f"{path}/{leaf}{_query(level, is_global, **{leaf: body})}")
        else:
            request(method, admin_url, f"{path}/{leaf}{_query(level, is_global)}", body)

    def remove(path: str, admin_url: str, is_global: bool, leaf: str = leaf) -> None:
        request("DELETE", admin_url, f"{path}/{leaf}{_query(level, is_global)}")

    if row.name == "subscription_dispatch_rate" and level.is_topic:
        get, put, remove = (_of_subscription(each) for each in (get, put, remove))
    own = [_SUBSCRIPTION] if row.name == "subscription_dispatch_rate" and level.is_topic else []
    shown = f"{words} of {level.argument.upper()}"
    _command(group, level, f"get-{noun}", f"Show the {shown}.", get, *own, *_shown_options(level))
    options = [_option(place, flag) for place, flag in enumerate(flags)]
    _command(group, level, f"set-{noun}", f"Set the {shown}.", put, *own, *options)
    _command(group, level, f"remove-{noun}", f"Unset the {shown}: the level below decides.", remove, *own)


_SUBSCRIPTION = click.Option(
    ["-s", "--subscription"], help="Only for this subscription. [default: for each of the topic's]"
)


def _of_subscription(function: Callable[..., None]) -> Callable[..., None]:
    """The same for one subscription, if one is named: its rate is below it in the path."""

    def run(path: str, subscription: str | None = None, **values: Any) -> None:
        if subscription is not None:
            path, values = f"{path}/{quote(subscription, safe='')}", {**values, "leaf": "dispatchRate"}
        function(path, **values)

    return run


def _shown_options(level: Level) -> list[click.Option]:
    """Of commands that show a policy."""
    holds = "Show the effective value: the topic's, else the namespace's, else the broker's."
    applied = click.Option(["-ap", "-a", "--applied", "applied"], is_flag=True, help=holds)
    return [*shown_options(), applied] if level.is_topic else shown_options()


def _add_quotas(group: click.Group, level: Level) -> None:
    def get(path: str, admin_url: str, is_global: bool, as_json: bool, applied: bool = False) -> None:
        query = _query(level, is_global, applied="true" if applied else None)
        quotas = request("GET", admin_url, f"{path}/backlogQuotaMap{query}").json()
        if as_json:
            print_json(quotas)
        else:
            emit([{"type": kind, **quotas[kind]} for kind in sorted(quotas)], as_json=False)

    def put(path: str, admin_url: str, is_global: bool, limit: int, limit_time: int, policy: str, kind: str) -> None:
        body = {"limitSize": limit, "limitTime": limit_time, "policy": policy}
        request("POST", admin_url, f"{path}/backlogQuota{_query(level, is_global, backlogQuotaType=kind)}", body)

    def remove(path: str, admin_url: str, is_global: bool, kind: str) -> None:
        request("DELETE", admin_url, f"{path}/backlogQuota{_query(level, is_global, backlogQuotaType=kind)}")

    kinds = click.Choice(["destination_storage", "message_age"])
    kind = click.Option(
        ["-t", "--type", "kind"],
        type=kinds,
        default="destination_storage",
        show_default=True,
        help="Type of the quota: by size (destination_storage) or by age (message_age).",
    )
    policies = click.Choice(["producer_request_hold", "producer_exception", "consumer_backlog_eviction"])
    noun = "get-backlog-quotas" if not level.is_topic else "get-backlog-quota"
    _command(group, level, noun, "Show the backlog quotas by type.", get, *_shown_options(level))
    _command(
        group,
        level,
        "set-backlog-quota",
        "Limit the backlog of subscriptions by size or age.",
        put,
        click.Option(["-l", "--limit"], type=SIZE, default=-1, help="Size such as 10G; -1 means no limit."),
        click.Option(
            ["-lt", "--limitTime", "limit_time"], type=SECONDS, default=-1, help="Age such as 3h; -1 means no limit."
        ),
        click.Option(
            ["-p", "--policy"],
            type=policies,
            required=True,
            help="What happens at the limit: producers wait, producers fail, or the oldest backlog is dropped.",
        ),
        kind,
    )
    _command(group, level, "remove-backlog-quota", "Remove a quota.", remove, kind)


def show(value: Any, as_json: bool, title: str) -> None:
    """A policy's value; null, or `not set`, while it has none."""
    if as_json:
        print_json(value)
    elif isinstance(value, dict):
        emit_record(value, as_json=False, title=title)
    elif isinstance(value, list):
        echo_text(",".join(str(each) for each in value) or UNSET)
    else:
        echo_text(UNSET if value is None else str(value).lower() if isinstance(value, bool) else str(value))


for _group, _level in ((namespaces_group, NAMESPACE), (topic_policies_group, TOPIC)):
    for _row in POLICY_ROWS:
        if _row.topic if _level.is_topic else _row.namespace:
            _add(_group, _level, _row)
    _add_quotas(_group, _level)
