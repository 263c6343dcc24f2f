"""Passwords by SCRAM-SHA-256: with libpq (psycopg) and psql, by the example of the RFC, and with what is wrong."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from magnetar.pipeline.serving.wire import scram
from magnetar.pipeline.serving.wire.messages import ProtocolError
from tests.support.served_views import ViewServer, serving
from tests.support.state_tables import StateTableHarness
from tests.support.tokens import SECRET, token

UNUSUAL = "I\u00adX \u2168 \N{NO-BREAK SPACE}ü\u0308"
"""SASLprep drops, folds and maps parts of it."""


def give(file: Path, role: str, password: str, *more: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "magnetar", "pipeline", "password", role, "--file", str(file), *more],
        input=f"{password}\n", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def secrets_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("secrets") / "secrets.txt"
    give(file, "alice", "sesame")
    give(file, "alice", "open sesame")
    give(file, "bob", UNUSUAL)
    return file


@pytest.fixture(scope="module")
def guarded(home: Path, harness: StateTableHarness, secrets_file: Path) -> Iterator[ViewServer]:
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "scram,token",
        "authorizationEnabled": "true",
        "viewReaderRoles": "flights:alice,flights:bob,flights:carol,flights:dave",
        "tokenSecretKey": f"data:;base64,{base64.b64encode(SECRET).decode()}",
        "scramSecretsFile": str(secrets_file),
    }
    with serving(home, "flights", settings=settings) as found:
        yield found


def who(server: ViewServer, user: str, password: str) -> str:
    with psycopg.connect(server.dsn(user), password=password, autocommit=True) as connection:
        found = connection.execute("SELECT current_user").fetchone()
        assert found is not None
        return str(found[0])


def test_a_password_is_proved_and_tokens_have_a_user_of_their_own(guarded: ViewServer) -> None:
    assert who(guarded, "alice", "open sesame") == "alice"
    assert who(guarded, "bob", UNUSUAL) == "bob"
    assert who(guarded, "token", token("carol")) == "carol"
    said = set()
    for user, password in (("alice", "sesame"), ("alice", token("alice")), ("nobody", "open sesame"), ("carol", "x")):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed") as refused:
            who(guarded, user, password)
        said.add(str(refused.value).replace(user, "USER"))
    assert len(said) == 1


@pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed: apt-get install postgresql-client")
def test_psql_proves_a_password(guarded: ViewServer) -> None:
    assert "alice" in guarded.psql("SELECT current_user", user="alice", PGPASSWORD="open sesame")
    assert "password authentication failed" in guarded.psql("SELECT 1", user="alice", PGPASSWORD="no", code=2)


def test_a_changed_file_counts_from_the_next_connection_on(guarded: ViewServer, secrets_file: Path) -> None:
    give(secrets_file, "dave", "first")
    with psycopg.connect(guarded.dsn("dave"), password="first", autocommit=True) as open_one:
        give(secrets_file, "dave", "second")
        assert who(guarded, "dave", "second") == "dave"
        assert "nothing was changed" in give(secrets_file, "erin", "", "--remove", code=1)
        give(secrets_file, "dave", "", "--remove")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            who(guarded, "dave", "second")
        whole = secrets_file.read_text()
        secrets_file.write_text(whole + "dave:not a secret\n")
        assert who(guarded, "alice", "open sesame") == "alice"
        secrets_file.write_text(whole)
        assert open_one.execute("SELECT 1").fetchone() == (1,)
    assert os.stat(secrets_file).st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "response",
    [b"SCRAM-SHA-256-PLUS\0\0\0\0\x08p=tls,,n", b"SCRAM-SHA-256\0\xff\xff\xff\xff", b"SCRAM-SHA-256\0\0\0\0\x03n,,", b"SCRAM-SHA-256", b"",
     b"SCRAM-SHA-256\0\x7f\0\0\0n,,n=,r=x", b"SCRAM-SHA-256\0\0\0\0\x0dp=x,,n=,r=abc", b"SCRAM-SHA-256\0\0\0\0\x06n,,\xff\xfe\xfd"],
)  # fmt: skip
def test_a_malformed_answer_ends_the_connection(guarded: ViewServer, response: bytes) -> None:
    start = b"user\0alice\0database\0flights\0\0"
    with socket.create_connection((guarded.host, guarded.port), timeout=60) as connection:
        connection.sendall(struct.pack("!ii", len(start) + 8, 196608) + start)
        connection.sendall(b"p" + struct.pack("!i", len(response) + 4) + response)
        answer = b""
        while part := connection.recv(4096):
            answer += part
    assert answer.startswith(b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0E")
    assert b"C08P01\0" in answer


def test_the_exchange_of_the_rfc() -> None:
    """RFC 7677, section 3."""
    secret = scram.make_secret("pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    exchange = scram.Exchange(secret, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = exchange.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    final = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=" + proof
    assert exchange.final(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.final(final.replace(b"p=d", b"p=e")) is None
    with pytest.raises(ProtocolError):
        exchange.final(final.replace(b"c=biws", b"c=eSws"))
    with pytest.raises(ProtocolError):
        exchange.final(final.replace(b"hNlF$k0", b"hNlF$k1"))


def test_secrets_are_read_as_they_are_written_and_unknown_roles_have_one() -> None:
    made = scram.make_secret("x", b"0123456789abcdef", 5000)
    assert scram.read_secret(str(made)) == made
    for wrong in (
        "",
        "SCRAM-SHA-256$0:YQ==$a:b",
        str(made)[:-1],
        str(made) + "=",
        str(made).replace("5000", "9999999"),
        "md5abc",
    ):
        with pytest.raises(ValueError, match="it"):
            scram.read_secret(wrong)
    mock = scram.mock_secret("nobody", b"key", 5000)
    assert (mock.salt, mock.iterations) == (scram.mock_secret("nobody", b"key", 5000).salt, 5000)
    assert mock.salt != scram.mock_secret("somebody", b"key", 5000).salt
