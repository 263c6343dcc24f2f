"""A click group whose commands are imported when they are called: `magnetar --help` reads a table and imports nothing."""

from __future__ import annotations

import difflib
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from magnetar.cli.interrupts import interrupts_end_the_process


class LazyCommand(NamedTuple):
    """Where a command lives (`module:attribute`) and the line that help shows for it."""

    target: str
    help: str


@contextmanager
def uncollected() -> Iterator[None]:
    """For imports: what they make stays, and looking for garbage in it takes a tenth of their time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class LazyGroup(click.Group):
    """Commands from a table, in the table's order."""

    def __init__(self, *args: Any, table: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table
        self._refusing: set[str] = set()
        """Commands that `refuse_empty` was called for: once is enough, also where one process runs many."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._table.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        with interrupts_end_the_process(), uncollected():
            command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), entry.target
        if cmd_name not in self._refusing:
            self._refusing.add(cmd_name)
            refuse_empty(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and help from the table: nothing is imported for a key press."""
        names = [name for name in self._table if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=self._table[name].help) for name in names]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self._table.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._table and not name.startswith("-"):
            near = difflib.get_close_matches(name, list(self._table), n=1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)


_NAMES = frozenset(
    {
        "admin_url",
        "advertised_address",
        "bind_address",
        "bookie_id",
        "cluster_name",
        "metadata_service_uri",
        "metadata_store_url",
        "service_url",
        "subject",
        "subscription",
        "subscription_name",
        "url",
    }
)
"""Options that name something, besides those that take a path."""


def refuse_empty(command: click.Command) -> None:
    """Make the command and those below it refuse the empty word as a path or a name: it comes from a variable that is not set, and as a
    path it would be the working directory."""
    for part in getattr(command, "commands", {}).values():
        refuse_empty(part)
    for param in command.params:
        named = (
            isinstance(param, click.Argument)
            and param.nargs == 1
            and param.type is click.STRING
            and param.name != "key"
        )
        if isinstance(param.type, click.Path) or named or param.name in _NAMES:
            cast = param.type_cast_value

            def checked(
                ctx: click.Context, value: Any, param: click.Parameter = param, cast: Callable[..., Any] = cast
            ) -> Any:
                if value == "" or (isinstance(value, list | tuple) and "" in value):
                    raise click.BadParameter(
                        "must not be empty; check that the variable it comes from is set", ctx, param
                    )
                return cast(ctx, value)

            param.type_cast_value = checked  # type: ignore[method-assign]
