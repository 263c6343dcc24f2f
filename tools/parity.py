"""What an operator of Apache Pulsar finds here: every command of pulsar-admin with its flags, and every route of the admin API.

    python tools/parity.py DIRECTORY [DIRECTORY...]

The directories hold Pulsar's sources: a checkout, or unpacked source jars of pulsar-broker and pulsar-client-tools. What they have
is written to tests/compat/pulsar-surface.json, and the comparison into docs/reference/compatibility.md. Without a directory the surface
that was written before is compared. What is missing must stand in tests/compat/pulsar-surface.allow with its reason, and nothing else may.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from magnetar.broker.naming import DOMAINS

ROOT: Final = Path(__file__).resolve().parents[1]
SURFACE: Final = ROOT / "tests/compat/pulsar-surface.json"
ALLOWED: Final = ROOT / "tests/compat/pulsar-surface.allow"
DOCUMENT: Final = ROOT / "docs/reference/compatibility.md"
BEGIN: Final = "<!-- written by tools/parity.py -->"
END: Final = "<!-- end of what tools/parity.py writes -->"

MOUNTS: Final = {"admin/v2": "/admin/v2", "admin/v3": "/admin/v3", "lookup/v2": "/lookup", "rest": "/topics"}
"""Where the broker serves the resources of a folder of its sources."""

_STRING: Final = r'"((?:[^"\\]|\\.)*)"'
_CLASS: Final = re.compile(r"class (\w+)(?:<[^>]*>)?(?: extends ([\w.]+))?")
_METHOD: Final = re.compile(r"@(GET|POST|PUT|DELETE|HEAD)\b")


INTERNAL: Final = {"authoritative", "createLocalTopicOnly", "updateLocalTopicOnly"}
"""Query parameters by which brokers ask each other."""


class Missing(NamedTuple):
    """`kind` is command, flag, route or parameter; `group` the noun that it belongs to."""

    kind: str
    group: str
    name: str


# ---- Pulsar's sources


def routes_of(directories: list[Path]) -> dict[str, list[str]]:
    """`METHOD /path` with `{}` for each variable, and the parameters of its query; both sorted."""
    found: dict[str, set[str]] = {}
    for directory in directories:
        classes = {}
        for path in directory.rglob("*.java"):
            folder = path.parent.as_posix()
            mount = next((url for part, url in MOUNTS.items() if f"broker/{part}" in folder), "")
            if (mount or folder.endswith("broker/admin/impl")) and "src/test" not in folder:
                classes[path.stem] = (mount, path.read_text(encoding="utf-8"))
        for name, (mount, text) in classes.items():
            base = re.search(
                rf"@Path\({_STRING}\)(?:\s*@[^\n]*(?:\([^)]*\))?)*\s*public class {name}\b", text, re.DOTALL
            )
            if base is None or not mount:
                continue
            for method, tail, query in _annotated(classes, name):
                found.setdefault(f"{method} {_normal(mount + '/' + base[1] + '/' + tail)}", set()).update(query)
    return {route: sorted(found[route] - INTERNAL) for route in sorted(found)}


def _annotated(classes: dict[str, tuple[str, str]], name: str) -> Iterator[tuple[str, str, list[str]]]:
    """Method, path and query parameters of each handler of a class, those that it inherits included."""
    text = classes[name][1]
    blocks = re.split(r"\n    (?:public|protected|private) ", text)
    for block, signature in zip(blocks, [*blocks[1:], ""], strict=True):
        # the annotations of a method stand between the end of what is before it and its first line
        head = block[block.rfind("\n    }\n") + 1 :] if "\n    }\n" in block else block
        methods = _METHOD.findall(head)
        if methods:
            path = re.search(
                rf"@Path\({_STRING}\)", head[head.rfind("@" + methods[-1]) :] if "class " in head else head
            )
            yield methods[-1], path[1] if path else "", re.findall(rf"@QueryParam\({_STRING}\)", signature)
    above = _CLASS.search(text[text.find(f"class {name}") :])
    if above and above[2] in classes:
        yield from _annotated(classes, above[2])


def _normal(path: str) -> str:
    return "/" + "/".join(part for part in re.sub(r"\{[^}]*\}", "{}", path).split("/") if part)


def commands_of(directories: list[Path]) -> dict[str, dict[str, list[list[str]]]]:
    """Group -> command -> flags, each the list of its names."""
    folders = [path.parent for directory in directories for path in directory.rglob("admin/cli/PulsarAdminTool.java")]
    if not folders:
        raise SystemExit("no PulsarAdminTool.java in these directories: give the sources of pulsar-client-tools")
    folder = folders[0]
    texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("Cmd*.java")}
    table = (folder / "PulsarAdminTool.java").read_text(encoding="utf-8")
    groups = {}
    for group, kind in re.findall(r'commandMap\.put\("([\w-]+)", ([\w.]+)\.class\)', table):
        text = texts[kind.split(".")[0]]
        if "." in kind:
            text = text[text.index(f"class {kind.split('.')[1]}") :]
        groups[group] = _commands(text)
    return groups


def _commands(text: str) -> dict[str, list[list[str]]]:
    return {
        name: _flags(text, kind)
        for name, kind in re.findall(r'(?<!\.)addCommand\("([\w-]+)",\s*(?:new )?(?:\w+\.)*(\w+)', text)
    }


def _flags(text: str, kind: str) -> list[list[str]]:
    kind = kind[0].upper() + kind[1:]
    start = re.search(rf"\bclass {kind}\b(?: extends (\w+))?[^{{]*\{{", text)
    if start is None:
        return []
    body = text[start.end() : _end(text, start.end())]
    found = [
        re.findall(_STRING, names) for names in re.findall(r"@Option\(\s*names\s*=\s*(\{[^}]*\}|\"[^\"]*\")", body)
    ]
    above = start[1] if start[1] not in (None, "CliCommand") else ""
    for inner in re.findall(r"@ArgGroup[^\n]*\n[^;]*?(\w+) \w+(?: = [^;]*)?;", body):
        found += _flags(text, inner) if inner != kind else []
    return found + (_flags(text, above) if above else [])


def _end(text: str, place: int) -> int:
    depth = 1
    for found in re.finditer(r'"(?:[^"\\\n]|\\.)*"|[{}]', text[place:]):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return place + found.start()
    return len(text)


# ---- What is here


def our_routes() -> dict[str, set[str]]:
    """The parameters of each one's query, as the OpenAPI document has them."""
    from magnetar.admin.openapi import document
    from magnetar.admin.routes import all_routes

    described = {
        f"{method.upper()} {path}": {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
        for path, operations in document(all_routes())["paths"].items()
        for method, operation in operations.items()
        if isinstance(operation, dict)
    }
    return {
        f"{route.method} {_normal(route.path)}": described.get(f"{route.method} {route.template}", set())
        for route in all_routes()
    }


def our_commands() -> dict[str, dict[str, set[str]]]:
    from magnetar.cli.main import cli

    context = click.Context(cli)
    found: dict[str, dict[str, set[str]]] = {}
    for name in cli.list_commands(context):
        group = cli.get_command(context, name)
        if isinstance(group, click.Group):
            inner = click.Context(group, parent=context)
            commands = {each: group.get_command(inner, each) for each in _all_names(group, inner)}
            found[name] = {
                each: {option for part in command.params for option in (*part.opts, *part.secondary_opts)}
                for each, command in commands.items()
                if command is not None
            }
    return found


def _all_names(group: click.Group, context: click.Context) -> list[str]:
    return [*group.list_commands(context)]


def missing(surface: dict[str, Any]) -> list[Missing]:
    """What Pulsar has and is not here."""
    routes, commands = our_routes(), our_commands()
    found = []
    for route, parameters in surface["routes"].items():
        group = route.split("/")[3] if route.count("/") > 2 else "topics"
        here = [routes.get(each) for each in _both_domains(route)]
        if None in here:
            found.append(Missing("route", group, route))
        else:
            found += [
                Missing("parameter", group, f"{route}?{name}")
                for name in parameters
                if not all(name in each for each in here if each is not None)
            ]
    for group, theirs in surface["commands"].items():
        for name, flags in theirs.items():
            ours = commands.get(group, {}).get(name)
            if ours is None:
                found.append(Missing("command", group, f"{group} {name}"))
                continue
            found += [
                Missing("flag", group, f"{group} {name} {flag}")
                for names in flags
                for flag in names
                if flag not in ours and flag not in ("--help", "-h")
            ]
    return found


def _both_domains(route: str) -> list[str]:
    """Lookups have a variable where two words can stand."""
    method, _, path = route.partition(" /lookup/v2/topic/{}/")
    return [f"{method} /lookup/v2/topic/{domain}/{path}" for domain in DOMAINS] if path else [route]


# ---- The list of reasons


def reasons() -> dict[str, str]:
    """By `kind name`; the name may be a pattern, such as `functions *`."""
    lines = ALLOWED.read_text(encoding="utf-8").splitlines() if ALLOWED.exists() else []
    pairs = (line.split("  ", 1) for line in lines if line.strip() and not line.startswith("#"))
    return {pair[0].strip(): pair[1].strip() if len(pair) > 1 else "" for pair in pairs}


def reason_of(item: Missing, allowed: dict[str, str]) -> tuple[str, str] | None:
    """The line's key, and the reason."""
    name = f"{item.kind} {item.name}"
    return next(((key, reason) for key, reason in allowed.items() if fnmatchcase(name, key)), None)


def problems(surface: dict[str, Any]) -> list[str]:
    """One line each: what is missing without a reason, and reasons for what is not missing."""
    allowed, used = reasons(), set()
    found = []
    for item in missing(surface):
        reason = reason_of(item, allowed)
        if reason is None:
            found.append(f"missing, and not in {ALLOWED.name}: {item.kind} {item.name}")
        else:
            used.add(reason[0])
    return found + [f"in {ALLOWED.name}, and not missing: {key}" for key in allowed if key not in used]


# ---- The table


def table(surface: dict[str, Any]) -> str:
    allowed = reasons()
    gone = missing(surface)
    counts = Counter((item.kind, item.group) for item in gone)
    lines = [
        f"Pulsar {surface['broker']} (routes), pulsar-admin {surface['tools']} (commands and flags).",
        "",
        "| group | commands | here | flags | here |",
        "|---|---|---|---|---|",
    ]
    for group, theirs in surface["commands"].items():
        away = counts["command", group]
        present = {
            name: flags for name, flags in theirs.items() if Missing("command", group, f"{group} {name}") not in gone
        }
        flags = sum(len(names) for each in present.values() for names in each)
        lines.append(
            f"| `{group}` | {len(theirs)} | {len(theirs) - away} | {flags} | {flags - counts['flag', group]} |"
        )
    total = len(surface["routes"])
    lines += ["", f"Of {total} routes {total - sum(item.kind == 'route' for item in gone)} are here.", ""]
    lines += ["Not here, and why:", ""]
    by_reason: dict[str, list[str]] = {}
    for item in gone:
        reason = reason_of(item, allowed)
        names = by_reason.setdefault(reason[1] if reason else "no reason yet", [])
        names.append(f"`{reason[0].partition(' ')[2] if reason else item.name}`")
    lines += [f"- {', '.join(dict.fromkeys(names))}: {reason}" for reason, names in by_reason.items()]
    return "\n".join(lines)


def write(surface: dict[str, Any]) -> None:
    SURFACE.write_text(json.dumps(surface, indent=1) + "\n", encoding="utf-8")
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{table(surface)}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


@click.command()
@click.argument("directories", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--broker-version", default="4.2.4", help="Version that the table names for the routes.")
@click.option("--tools-version", default="4.2.4", help="Version that the table names for the commands.")
def main(directories: tuple[Path, ...], broker_version: str, tools_version: str) -> None:
    """Compare with Pulsar's sources in DIRECTORIES, or with what they said the last time."""
    if directories:
        surface = {
            "broker": broker_version,
            "tools": tools_version,
            "routes": routes_of([*directories]),
            "commands": commands_of([*directories]),
        }
    else:
        surface = json.loads(SURFACE.read_text(encoding="utf-8"))
    write(surface)
    found = problems(surface)
    for line in found:
        click.echo(line)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
