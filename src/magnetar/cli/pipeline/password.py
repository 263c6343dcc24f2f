"""`magnetar pipeline password`: what a role proves its password by, for `pipeline serve`."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import Final

import click

from magnetar.base.errors import ConfigError
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit_done, json_option, print_json
from magnetar.pipeline.serving.wire.scram import ITERATIONS, ITERATIONS_MAX, MECHANISM, SALT_BYTES, make_secret

PASSWORD_BYTES_MAX: Final = 1024


@click.command("password")
@click.argument("role")
@click.option(
    "--file", "file", type=click.Path(path_type=Path, dir_okay=False), help="The scramSecretsFile to put it into."
)
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS, ITERATIONS_MAX),
    default=ITERATIONS,
    show_default=True,
    help="Work that guessing costs whoever has the file, and a client at each connect.",
)
@click.option("--remove", is_flag=True, help="Take the role out of the file instead.")
@json_option
def password_command(role: str, file: Path | None, iterations: int, remove: bool, as_json: bool) -> None:
    """Give ROLE a password for `pipeline serve`, where authenticationProviders has `scram`; asked for, or a line of stdin.

    Stored is what proves the password (SCRAM-SHA-256, in PostgreSQL's form), not the password. Without --file the line is printed. Running
    servers read the file again when it changes; connections that are open stay.
    """
    if not role or role == "token" or any(ord(char) < 32 for char in role):
        raise CommandError(
            'ROLE must be a name without control characters, and not "token", as which clients show tokens'
        )
    if remove:
        if file is None:
            raise CommandError("--remove needs the --file to take the role out of")
        kept, was = _lines(file, role)
        if not was:
            raise CommandError(f"{role} is not in {file}; nothing was changed")
        _write(file, kept)
        emit_done(as_json, role=role, file=str(file), removed=True)
        return
    line = f"{role}:{make_secret(_password(), secrets.token_bytes(SALT_BYTES), iterations)}"
    if file is None:
        if as_json:
            print_json({"role": role, "secret": line.removeprefix(f"{role}:")})
        else:
            click.echo(line)
        return
    kept, was = _lines(file, role) if file.exists() else ([], False)
    _write(file, [*kept, line])
    emit_done(as_json, role=role, file=str(file), replaced=was)


def _password() -> str:
    if sys.stdin.isatty():
        found = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        found = sys.stdin.readline(PASSWORD_BYTES_MAX + 2).removesuffix("\n").removesuffix("\r")
    if not found or "\0" in found or len(found.encode(errors="replace")) > PASSWORD_BYTES_MAX:
        raise CommandError(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes; nothing was changed")
    return str(found)


def _lines(file: Path, role: str) -> tuple[list[str], bool]:
    """Those of others, comments included, and whether the role had one."""
    from magnetar.processes.view_server import read_secrets

    try:
        known = read_secrets(str(file))
        lines = file.read_text().splitlines()
    except (ConfigError, OSError) as error:
        raise CommandError(f"{error}; nothing was changed") from error
    return [line for line in lines if not line.strip().startswith(f"{role}:{MECHANISM}$")], role in known


def _write(file: Path, lines: list[str]) -> None:
    """Whole or as it was; for its owner alone."""
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}.tmp")
    try:
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                out.write("".join(f"{line}\n" for line in lines))
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}") from error
