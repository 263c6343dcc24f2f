"""What `--help` prints is complete: every command and every option says what it does."""

from __future__ import annotations

from collections.abc import Iterator

import click

from magnetar.cli.main import cli

BEGINNINGS = {"A", "An", "The", "What", "Where", "Which", "Who", "Whether", "Of", "So", "How"}


def commands(
    command: click.Command, path: tuple[str, ...], context: click.Context
) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, name
            yield from commands(child, (*path, name), click.Context(child, info_name=name, parent=context))


def test_every_command_says_what_it_does() -> None:
    everything = list(commands(cli, ("magnetar",), click.Context(cli)))
    assert len(everything) > 300
    for path, command in everything[1:]:
        first = (command.help or "").strip().split("\n")[0]
        assert first, f"`{path}` has no help text"
        assert first.split()[0] not in BEGINNINGS, (
            f"The help of `{path}` should begin with a verb (List, Show, Set, ...): {first}"
        )


def test_every_option_says_what_it_means() -> None:
    for path, command in commands(cli, ("magnetar",), click.Context(cli)):
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                text = option.help or ""
                assert len(text.split()) > 1, (
                    f"`{path} {option.opts[-1]}` needs a sentence that says what the value means, not {text!r}"
                )
                assert text.split()[0] not in ("Of", "So", "How"), (
                    f"The help of `{path} {option.opts[-1]}` is not a statement: {text}"
                )


def test_what_shows_something_offers_a_table_beside_json() -> None:
    """One of the two decides what is printed where stdout is not a terminal; a command that has a table has JSON as well."""
    flags = {
        path: {flag for option in command.params for flag in option.opts}
        for path, command in commands(cli, ("magnetar",), click.Context(cli))
        if not isinstance(command, click.Group)
    }
    tables = {path for path, has in flags.items() if "--table" in has}
    assert len(tables) > 150
    assert [path for path in tables if "--json" not in flags[path]] == []
    lists = {path for path in flags if path.split()[-1] in LISTS or path.split()[-1].startswith(("list-", "get-"))}
    assert sorted(lists - tables - ONE_VALUE) == []


LISTS = {"list", "get", "show", "stats", "status", "brokers", "stats-internal", "permissions", "policies", "partitions"}
ONE_VALUE = {
    f"magnetar {command}"
    for command in (
        "metadata get",
        "namespaces get-anti-affinity-group",
        "namespaces get-property",
        "namespaces get-resource-group",
        "tokens show",
        "topics get-backlog-size",
        "topics get-message-id",
    )
}
"""Commands that print one value or text, everywhere as it is."""
