"""What a command may fail with."""

from __future__ import annotations

from magnetar.base.errors import MagnetarError


class CommandError(MagnetarError):
    """A command could not do its work; the text is the one line the user sees, so it names the fix."""

    slug = "command"


class ServerUnreachableError(CommandError):
    """Nobody serves at the address, or it does not answer."""

    slug = "server-unreachable"
    retriable = True
