"""What the documents say exists: linked files, make targets, commands and settings."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import click
import pytest

from magnetar.cli.main import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("site_pages", ROOT / "tools" / "site.py")
assert SPEC is not None
assert SPEC.loader is not None
site_pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(site_pages)
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md"), *ROOT.glob("examples/**/*.md")]
)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.fixture(params=DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def document(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def generated() -> set[Path]:
    """Pages of the site that are made of code when it is built."""
    return {ROOT / "docs" / place for place in (*site_pages.generated_pages(), *site_pages.ROOT_PAGES.values())}


def code_lines(text: str) -> list[str]:
    """Lines of fenced blocks and code spans: where commands stand."""
    fenced = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    joined = re.sub(r"\\\n\s*", " ", "\n".join([*fenced, *spans]))
    return [line.strip().removeprefix("$ ") for line in joined.splitlines()]


def test_linked_files_exist(document: Path, generated: set[Path]) -> None:
    links = [link for link in LINK.findall(document.read_text(encoding="utf-8")) if "://" not in link]
    paths = [(document.parent / link).resolve() for link in links]
    assert [path for path in paths if not path.exists() and path not in generated] == []


def test_make_targets_exist(document: Path) -> None:
    named = {
        word
        for line in code_lines(document.read_text(encoding="utf-8"))
        if line.startswith("make ")
        for word in shlex.split(line, comments=True)[1:]
        if "=" not in word
    }
    assert named - TARGETS == set()


def test_commands_and_their_flags_exist(document: Path) -> None:
    for line in code_lines(document.read_text(encoding="utf-8")):
        command = re.match(r"(?:\.venv/bin/)?magnetar( (?:'[^']*'|\"[^\"]*\"|[^|&>#'\"])*)", line)
        if command and " ready " not in line:
            assert_command(shlex.split(command[1].replace("...", ""), posix=True), line)


def assert_command(words: list[str], line: str) -> None:
    node: click.Command = cli
    context = click.Context(cli, info_name="magnetar")
    flags = {"-h", "--help", "--version"}
    for word in words:
        if isinstance(node, click.Group) and not word.startswith("-"):
            found = node.get_command(context, word)
            assert found is not None, f"`{line}` names no command"
            node, context = found, click.Context(found, info_name=word, parent=context)
            flags |= {flag for param in node.params for flag in (*param.opts, *param.secondary_opts)}
        elif word.startswith("-") and not re.fullmatch(r"-\d+", word):
            assert word.split("=")[0] in flags, f"`{line}`: no flag {word}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists_and_helps(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(200), "say what it does in its docstring"


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_package_is_named(name: str) -> None:
    source = ROOT / "src"
    packages = {path.parent.name for path in (*source.glob("*/__init__.py"), *source.glob("magnetar/*/__init__.py"))}
    text = (ROOT / name).read_text(encoding="utf-8")
    assert [package for package in sorted(packages - {"magnetar"}) if not re.search(rf"\b{package}\b", text)] == []


def test_every_make_target_explains_itself() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())  # type: ignore[index]
    assert phony == set(re.findall(r"^([a-z-]+):.*## \S", text, re.MULTILINE))
