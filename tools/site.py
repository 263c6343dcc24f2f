"""MkDocs hook: the pages of the site that are generated from code and from the documents at the repository's root.

mkdocs.yml names this file. Generated are the reference of settings, commands, REST, metrics and limits, each read from its declarations,
and copies of ARCHITECTURE.md, CONTRIBUTING.md and CHANGELOG.md. `make docs` builds the site; a broken link or anchor fails it.
"""

from __future__ import annotations

import ast
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

sys.path.append(
    str(Path(__file__).resolve().parent)
)  # whoever loads this file as a hook or in a test finds its neighbour, too

import metric_names

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "magnetar"

ROOT_PAGES = {
    "ARCHITECTURE.md": "explanation/architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Documents at the root of the repository by their place in the site."""

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to the site."""
    from mkdocs.structure.files import File

    for place, text in generated_pages().items():
        files.append(File.generated(config, place, content=text))
    for source, place in ROOT_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=with_site_links(text, source, place)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links that leave `docs/` lead to the copy in the site, or become plain text where there is none."""
    place = page.file.src_uri
    if place in ROOT_PAGES.values():
        return markdown
    return with_site_links(markdown, f"docs/{place}", place)


def with_site_links(text: str, source: str, place: str) -> str:
    """`text` of the repository's file `source` with links that hold on the site's page `place`."""

    def replaced(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        if "://" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        to = ROOT_PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        return f"[{words}]({posixpath.relpath(to, posixpath.dirname(place) or '.')}{anchor})" if to else words

    return _LINK.sub(replaced, text)


def generated_pages() -> dict[str, str]:
    """Text of each generated page by its place below `docs/`."""
    return {
        "reference/settings.md": "\n".join(settings_page()),
        "reference/commands.md": "\n".join(commands_page()),
        "reference/rest.md": "\n".join(rest_page()),
        "reference/metrics.md": "\n".join(metrics_page()),
        "reference/limits.md": "\n".join(limits_page()),
        "reference/reasons.md": "\n".join(reasons_page()),
    }


def settings_page() -> Iterator[str]:
    """Each setting once, below the class that declares it."""
    from magnetar.base.settings import Setting, table_of
    from magnetar.cli.servers.settings import KINDS

    yield "# Settings\n"
    yield "Generated from the declarations. Values come from flags, `MAGNETAR_<NAME>` and `PULSAR_PREFIX_<key>` variables, a file, or the"
    yield "default, in this order; `magnetar config explain KEY` shows which one holds. A secret is given as a `file:///` path. "
    yield "What is *dynamic* can change while the broker runs: `magnetar brokers update-dynamic-config`.\n"
    groups: dict[type, dict[str, tuple[Setting, list[str]]]] = {}
    for kind, cls in KINDS.items():
        for name, row in table_of(cls).items():
            owner = next(base for base in cls.__mro__ if name in vars(base).get("__annotations__", {}))
            groups.setdefault(owner, {}).setdefault(row.key, (row, []))[1].append(kind)
    for owner, rows in groups.items():
        yield f"## {_words_of(owner.__name__)}\n\n{_first_paragraph(owner.__doc__)}\n"
        yield "| key | default | allowed | servers | meaning |\n|---|---|---|---|---|"
        for row, kinds in rows.values():
            cells = (
                f"`{row.key}`",
                _code(row.shown(row.default)),
                _allowed(row),
                ", ".join(kinds),
                row.doc + (" *Dynamic.*" if row.dynamic else ""),
            )
            yield _row(cells)
        yield ""


def _allowed(row: Any) -> str:
    if row.choices:
        return ", ".join(f"`{choice}`" for choice in row.choices if choice != "")
    bounds = [f"at least {row.minimum:g}" if row.minimum is not None else ""]
    bounds.append(f"at most {row.maximum:g}" if row.maximum is not None else "")
    return ", ".join(part for part in (row.kind.__name__, row.unit, *bounds) if part)


def commands_page() -> Iterator[str]:
    """Every command of the command line with its arguments and options."""
    from magnetar.cli.main import cli

    yield "# Commands\n"
    yield "Generated from the command line's own help: `magnetar COMMAND --help` prints the same."
    yield "Tables are for terminals, elsewhere JSON is printed: [what commands print](../how-to/administer.md#what-commands-print).\n"
    context = click.Context(cli, info_name="magnetar")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if command is not None:
            yield from _command(command, click.Context(command, info_name=name, parent=context), level=2)


def _command(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"{'#' * level} `{context.command_path}`\n"
    yield f"    {usage}\n"
    yield _plain_text(command.help or command.get_short_help_str(200)) + "\n"
    records = [
        record for param in command.get_params(context) if (record := param.get_help_record(context)) is not None
    ]
    records = [record for record in records if not record[0].startswith(("-h,", "--help"))]
    if records:
        yield "| option | meaning |\n|---|---|"
        for option, about in records:
            yield _row((f"`{option}`", about))
        yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                inner = click.Context(child, info_name=name, parent=context)
                yield from _command(child, inner, min(level + 1, 4))


def _plain_text(text: str) -> str:
    """A click help text as Markdown: a paragraph that click must not wrap is shown as it is written."""
    import inspect

    found = []
    for paragraph in inspect.cleandoc(text.partition("\f")[0]).split("\n\n"):
        if paragraph.startswith("\b"):
            found.append("\n".join(f"    {line}" for line in paragraph.splitlines()[1:]))
        else:
            found.append(_escaped(paragraph))
    return "\n\n".join(found)


def rest_page() -> Iterator[str]:
    """The operations of the OpenAPI document by tag."""
    from magnetar.admin.openapi import document
    from magnetar.admin.routes import all_routes

    yield "# Admin REST\n"
    yield "Generated from the OpenAPI document that the server serves at `/openapi.json`; `/docs` shows it with bodies and answers.\n"
    tags: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, operations in document(all_routes())["paths"].items():
        for method, about in operations.items():
            tags.setdefault(about["tags"][0], []).append((method.upper(), path, about))
    for tag, rows in sorted(tags.items()):
        yield f"## {tag}\n"
        yield "| method | path | meaning | access |\n|---|---|---|---|"
        for method, path, about in rows:
            yield _row((method, f"`{path}`", about.get("summary", ""), about.get("description", "")))
        yield ""


def metrics_page() -> Iterator[str]:
    """Names of metrics by the function or table that declares them."""
    yield "# Metrics\n"
    yield "Generated from the modules that export them. [Monitor](../how-to/monitor.md) explains which ones to watch.\n"
    for module, about, groups in metric_names.declarations():
        yield f"## {module}\n\n{_first_paragraph(about)}\n"
        for about_group, names in groups:
            yield _first_paragraph(about_group) + "\n" if about_group else ""
            yield "\n".join(f"- `{name}`" for name in names) + "\n"


def limits_page() -> Iterator[str]:
    """Each bound with its value and what happens when it is reached."""
    yield "# Limits\n"
    yield "Generated from `magnetar.base.limits`: every bound, and what happens when it is reached. Sizes are in bytes, times in"
    yield "seconds, unless the name says otherwise.\n"
    text = (SOURCE / "base" / "limits.py").read_text(encoding="utf-8")
    sections = {number: line[7:] for number, line in enumerate(text.splitlines(), 1) if line.startswith("# ---- ")}
    body = ast.parse(text).body
    heading = ""
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(after, ast.Expr):
            continue
        section = next((words for line, words in reversed(sections.items()) if line < node.lineno), "")
        if section != heading:
            heading = section
            yield f"\n## {heading}\n\n| bound | value | what happens when it is reached |\n|---|---|---|"
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        value = ast.get_source_segment(text, node.value) if node.value is not None else ""
        yield _row((f"`{ast.unparse(target)}`", f"`{value}`", str(ast.literal_eval(after.value))))


def reasons_page() -> Iterator[str]:
    """Each reason code with its words and the facts that belong to it."""
    from magnetar.broker.explain.answer import outside_name
    from magnetar.broker.explain.sentences import MEANINGS, facts_of, plain
    from magnetar.broker.reasons import Code

    yield "# Reason codes\n"
    yield "Generated from the declarations, in the order in which they weigh. [Find out why](../how-to/find-out-why.md) shows how to ask."
    yield "A name in braces stands for the fact; facts are named as in the JSON answer.\n"
    yield "| code | what is the case | what to do | facts |\n|---|---|---|---|"
    for code in Code:
        facts = ", ".join(f"`{outside_name(name)}`" for name in sorted(facts_of(code)))
        yield _row((f"`{code}`", plain(MEANINGS[code].text), plain(MEANINGS[code].change), facts))
    yield ""


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("|", "\\|")


def _escaped(text: str) -> str:
    """`text` with its angle brackets shown, outside of code."""
    return "`".join(
        part if place % 2 else part.replace("<", "&lt;").replace("[", "\\[")
        for place, part in enumerate(text.split("`"))
    )


def _code(value: object) -> str:
    return f"`{value}`" if str(value) else ""


def _words_of(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").split("\n\n", 1)[0].split())
