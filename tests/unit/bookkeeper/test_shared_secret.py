"""The bookies' shared secret: who knows it passes, nobody else, and it is not shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.base.errors import ConfigError
from magnetar.bookkeeper.errors import LedgerUnauthorizedError
from magnetar.bookkeeper.shared_secret import BookieSecret, BookieSecretSession, ClientSecret

SECRET = b"correct horse battery staple"


def talk(bookie: BookieSecretSession, client: ClientSecret) -> list[bytes]:
    """What the client said."""
    session = client.new_session()
    said: list[bytes] = []
    payload: bytes | None = session.start()
    while payload is not None:
        said.append(payload)
        payload = session.process(bookie.process(payload))
    return said


def test_who_knows_it_passes_and_it_does_not_travel() -> None:
    session = BookieSecret(SECRET).new_session(None)
    said = talk(session, ClientSecret(SECRET))
    assert session.passed
    assert len(said) == 2
    assert all(SECRET not in each for each in said)


def test_another_secret_does_not() -> None:
    session = BookieSecret(SECRET).new_session(None)
    with pytest.raises(LedgerUnauthorizedError):
        talk(session, ClientSecret(SECRET + b"r"))
    assert not session.passed


def test_what_was_said_once_is_worth_nothing_a_second_time() -> None:
    bookie = BookieSecret(SECRET)
    nonce, proof = talk(bookie.new_session(None), ClientSecret(SECRET))
    session = bookie.new_session(None)
    session.process(nonce)
    with pytest.raises(LedgerUnauthorizedError):
        session.process(proof)
    assert not session.passed


@given(st.lists(st.binary(max_size=64), max_size=4))
def test_nobody_passes_by_chance(payloads: list[bytes]) -> None:
    session = BookieSecret(SECRET).new_session(None)
    for payload in payloads:
        try:
            session.process(payload)
        except LedgerUnauthorizedError:
            break
    assert not session.passed


def test_a_client_gives_up_on_a_bookie_that_speaks_something_else() -> None:
    session = ClientSecret(SECRET).new_session()
    with pytest.raises(LedgerUnauthorizedError):
        session.process(b"welcome")


@pytest.mark.parametrize("kind", [BookieSecret, ClientSecret])
def test_short_secrets_are_refused_and_none_is_shown(kind: type) -> None:
    with pytest.raises(ConfigError, match="openssl rand") as caught:
        kind(b"swordfish")
    assert "swordfish" not in str(caught.value)
    assert "horse" not in repr(kind(SECRET))
