"""The typed client as somebody: tokens, passwords, TLS."""

from __future__ import annotations

import pytest

from magnetar.admin.client import AdminClient, ForbiddenError, UnauthorizedError, UnreachableError
from tests.integration.security.conftest import PASSWORD, Secured
from tests.support.tokens import token


def test_tokens_and_passwords(secured: Secured) -> None:
    url = secured.process.http_url
    tokens = [token("stranger"), token("root")]
    with AdminClient(url, token=lambda: tokens[-1]) as admin:
        assert "t" in admin.tenants.list()
        tokens.pop()
        with pytest.raises(ForbiddenError, match="stranger"):
            admin.tenants.list()
    with AdminClient(url, basic=("admin", PASSWORD)) as admin:
        assert "t" in admin.tenants.list()
    with AdminClient(url, token="nonsense") as admin, pytest.raises(UnauthorizedError):
        admin.tenants.list()
    with pytest.raises(ValueError, match="not both"):
        AdminClient(url, token="x", basic=("a", "b"))


def test_tls(secured: Secured) -> None:
    url = f"https://localhost:{secured.http_port_tls}"
    with AdminClient(url, token=token("root"), tls_trust_certs=secured.authority.file) as admin:
        assert "t" in admin.tenants.list()
    certificate, key = secured.authority.sign("root", "typed-client")
    with AdminClient(url, tls_trust_certs=secured.authority.file, tls_certificate=(certificate, key)) as admin:
        assert "t" in admin.tenants.list()
    with AdminClient(url, token=token("root")) as admin, pytest.raises(UnreachableError, match="certificate"):
        admin.tenants.list()
