"""`magnetar version` and `magnetar completion bash|zsh|fish`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import click
from click.shell_completion import get_completion_class

from magnetar import __version__
from magnetar.cli.output import emit_record, output_options
from magnetar.wire.pulsar.kernel import kernel

PARTS = ("pulsar-client", "protobuf", "rocksdict", "uvloop")


@click.command("version")
@output_options
def version_command(as_json: bool) -> None:
    """Show the versions of magnetar and what it runs on."""
    record: dict[str, object] = {
        "magnetar": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "message path": "compiled" if kernel else "Python",
    }
    for part in PARTS:
        try:
            record[part] = version(part)
        except PackageNotFoundError:
            record[part] = "not installed"
    emit_record(record, as_json=as_json)


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
