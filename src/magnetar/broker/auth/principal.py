"""The principal: the authenticated role that a request comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass

from magnetar.broker.errors import AuthenticationError

ROLE_CHARS_MAX = 1024
"""A longer role in a credential is refused."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Principal:
    """The role that acts, and the role of the `proxy` that speaks for it: what is done must be allowed to both.

    `expires_ms` is the end of the credential on the wall clock, None for one without end. `method` is how it was proved.
    """

    role: str
    method: str
    expires_ms: int | None = None
    proxy: str | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        """Every role that must be allowed."""
        return (self.role,) if self.proxy is None else (self.role, self.proxy)


def checked_role(role: object) -> str:
    """A role as it may appear in logs, paths and policies. Raises AuthenticationError."""
    if not isinstance(role, str) or not role or len(role) > ROLE_CHARS_MAX or _CONTROL.search(role):
        raise AuthenticationError("the credential names no usable role")
    return role
