"""`magnetar completion bash|zsh|fish`: a script for the shell; commands, flags and choices complete from the command itself."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_MAGNETAR_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  magnetar completion bash > ~/.local/share/bash-completion/completions/magnetar
    zsh:   magnetar completion zsh > a file _magnetar in a directory of $fpath
    fish:  magnetar completion fish > ~/.config/fish/completions/magnetar.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(script_of(kind, ctx.find_root().command))


def script_of(kind: type[click.shell_completion.ShellComplete], root: click.Command) -> str:
    """The text without what click finds out by starting the shell, which need not be installed here."""
    complete = kind(root, {}, "magnetar", VARIABLE)
    return complete.source_template % complete.source_vars()
