"""Who is let in: loopback without authentication, tokens, passwords, client certificates, roles, TLS; and clients that mean harm."""

from __future__ import annotations

import base64
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.certificates import Authority
from tests.support.served_views import ViewServer, serving
from tests.support.state_tables import StateTableHarness
from tests.support.tokens import SECRET, token
from tests.support.waiting import wait_until

PASSWORDS = "carol:{SHA}" + base64.b64encode(__import__("hashlib").sha1(b"sesame").digest()).decode() + "\n"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, home: Path, harness: StateTableHarness) -> Iterator[ViewServer]:
    directory = tmp_path_factory.mktemp("keys")
    authority = Authority(directory)
    certificate, key = authority.sign("localhost")
    authority.sign("alice")
    (directory / "passwords").write_text(PASSWORDS)
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "token,basic,tls",
        "authorizationEnabled": "true",
        "superUserRoles": "admin",
        "viewReaderRoles": "flights:alice,carol,other:bob",
        "viewOwnerRoles": "flights:dave,other:alice",
        "tokenSecretKey": f"data:;base64,{base64.b64encode(SECRET).decode()}",
        "basicAuthConf": str(directory / "passwords"),
        "tlsCertificateFilePath": certificate,
        "tlsKeyFilePath": key,
        "tlsTrustCertsFilePath": str(authority.file),
    }
    with serving(home, "flights", settings=settings) as found:
        found.authority = authority  # type: ignore[attr-defined]
        yield found


def ask(server: ViewServer, user: str, password: str, **options: object) -> object:
    with psycopg.connect(server.dsn(user, **options), password=password, autocommit=True) as connection:
        return (connection.execute("SELECT current_user, count(*) FROM kinds").fetchone(), connection.pgconn.ssl_in_use)


def test_only_owners_and_superusers_change_a_pipeline(guarded: ViewServer) -> None:
    statement = "CREATE FUNCTION f(x INT) RETURNS INT LANGUAGE python AS 'def f(x): return x'"
    for role, state in (("alice", "42501"), ("carol", "42501"), ("dave", "55000"), ("admin", "55000")):
        password = "sesame" if role == "carol" else token(role)
        with psycopg.connect(guarded.dsn(role), password=password, autocommit=True) as connection:
            for text in (statement, "DROP VIEW late"):
                with pytest.raises(psycopg.Error) as refused:  # 55000: the pipeline does not run
                    connection.execute(text)
                assert refused.value.sqlstate == state, (role, str(refused.value))


def test_a_token_stands_for_its_role_and_only_for_that(guarded: ViewServer) -> None:
    for mode, encrypted in (("require", True), ("disable", False)):
        assert ask(guarded, "alice", token("alice"), sslmode=mode) == (("alice", 3), encrypted)
    assert ask(guarded, "token", token("admin")) == (("admin", 3), True)
    assert ask(guarded, "carol", "sesame") == (("carol", 3), True)
    for user, password, words in (
        ("bob", token("bob"), "permission denied"),
        ("bob", token("alice"), "another role"),
        ("alice", token("alice", secret=b"x" * 32), "authentication failed"),
        ("alice", token("alice", lifetime_s=-10), "expired"),
        ("alice", token("alice", header={"alg": "none"}), "authentication failed"),
        ("carol", "wrong", "authentication failed"),
        ("carol", "", "fe_sendauth|authentication failed|password"),
    ):
        with pytest.raises(psycopg.OperationalError, match=words):
            ask(guarded, user, password)


def test_a_role_learns_nothing_of_pipelines_that_it_may_not_read(guarded: ViewServer) -> None:
    """Nor whether there is one of a name."""
    for user, password, database, words in (
        ("bob", token("bob"), "flights", 'permission denied for database "flights"$'),
        ("bob", token("bob"), "nothing", 'permission denied for database "nothing"$'),
        ("bob", token("bob"), "other", "does not exist.*\\s.*served: none that you may read"),
        ("carol", "sesame", "nothing", "does not exist.*\\s.*served: flights"),
    ):
        with pytest.raises(psycopg.OperationalError, match=words):
            ask(guarded, user, password, dbname=database)


def test_tls_is_verified_and_a_client_certificate_is_a_role(guarded: ViewServer) -> None:
    authority: Authority = guarded.authority  # type: ignore[attr-defined]
    certificate, key = (str(authority.directory / name) for name in ("alice.pem", "alice.key"))
    key_path = Path(key) if Path(key).exists() else next(authority.directory.glob("alice*key*"))
    key_path.chmod(0o600)
    trusted = {"sslmode": "verify-full", "sslrootcert": str(authority.file), "host": "localhost"}
    with psycopg.connect(
        host="localhost", port=guarded.port, dbname="flights", user="ignored", sslmode="verify-full", sslrootcert=str(authority.file),
        sslcert=certificate, sslkey=str(key_path), autocommit=True,
    ) as connection:  # fmt: skip
        assert connection.execute("SELECT current_user").fetchone() == ("alice",)
    assert ask(guarded, "alice", token("alice"), **trusted) == (("alice", 3), True)


def test_other_machines_are_let_in_only_when_they_are_asked_who_they_are(home: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "magnetar",
        "pipeline",
        "serve",
        str(home / "pipelines/flights"),
        "--port",
        "0",
        "--bind-address",
        "0.0.0.0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "nothing asks who they are" in done.stderr


def raw(server: ViewServer) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=60)


def startup(**parameters: str) -> bytes:
    body = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items()) + b"\0"
    return struct.pack("!ii", len(body) + 8, 196608) + body


def everything(connection: socket.socket) -> bytes:
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionError:
        pass
    return found


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 100,
        b"\xff" * 100,
        struct.pack("!ii", 2**31 - 1, 196608),
        struct.pack("!ii", 8, 131072),
        startup(user="reader", database="flights")[:-3] + b"xyz",
        startup(user="reader", database="nothing"),
        startup(database="flights"),
        startup(user="reader", database="flights", replication="true"),
        startup(user="reader", database="flights") + b"Q\x7f\xff\xff\xff",
        startup(user="reader", database="flights") + b"Q\x00\x00\x00\x00",
        startup(user="reader", database="flights") + b"Q\x00\x00\x00\x08\xff\xfe\xfd\x00",
        startup(user="reader", database="flights") + b"P\x00\x00\x00\x06a\x00",
        startup(user="reader", database="flights") + b"B\x00\x00\x00\x0a\x00\x00\xff\xff\x00\x00",
        startup(user="reader", database="flights") + b"!\x00\x00\x00\x04",
        startup(user="reader", database="flights") + b"p\x00\x00\x00\x04",
    ],
)  # fmt: skip
def test_what_is_no_message_ends_its_connection_and_nothing_else(server: ViewServer, data: bytes) -> None:
    with raw(server) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = everything(connection)
    if answer:
        assert b"E" in answer or answer[:1] in (b"R", b"N")
    with psycopg.connect(server.dsn(), autocommit=True) as good:
        assert good.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "statement",
    ["SELECT " + "(" * 5000 + "1" + ")" * 5000, "SELECT " + "+".join(["1"] * 20_000), "SELECT '" + "x" * 300_000 + "'", "SELECT 'open",
     "/* open", "SELECT $tag$ open", "SELECT \"open", "\\", "SELECT 1 AS OF EPOCH x", "SELECT * FROM " + ",".join(["delays"] * 300)],
)  # fmt: skip
def test_a_statement_that_means_harm_is_an_error(server: ViewServer, statement: str) -> None:
    with psycopg.connect(server.dsn(options="-cx=1"), autocommit=True) as connection:
        connection.execute("SET statement_timeout = '5s'")
        with pytest.raises(psycopg.Error):
            connection.execute(statement)
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_cancel_needs_the_secret(server: ViewServer) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        with raw(server) as other:
            other.sendall(struct.pack("!iiII", 16, 80877102, connection.info.backend_pid, 1))
            assert everything(other) == b""
        assert connection.execute("SELECT count(*) FROM delays").fetchone() is not None


def test_more_clients_than_allowed_are_told_so(home: Path, harness: StateTableHarness) -> None:
    with serving(home, "flights", settings={"maxPostgresConnections": 3}) as server:
        held = [psycopg.connect(server.dsn(), autocommit=True) for _ in range(3)]
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            psycopg.connect(server.dsn())
        held.pop().close()

        def again() -> bool:
            try:
                psycopg.connect(server.dsn()).close()
            except psycopg.OperationalError:
                return False
            return True

        wait_until(again, 60)
        for connection in held:
            connection.close()


def test_a_server_ends_under_a_query(home: Path, harness: StateTableHarness) -> None:
    """It ends in time, with 0 and without a traceback: `serving` asserts that."""
    endless = b"SELECT sum(a * b) FROM generate_series(1, 1000000) AS a, generate_series(1, 1000000) AS b"
    with serving(home, "flights") as server:
        connection = psycopg.connect(server.dsn(), autocommit=True)
        connection.pgconn.send_query(endless)
        with psycopg.connect(server.dsn(), autocommit=True) as other:
            assert other.execute("SELECT 1").fetchone() == (1,)
    connection.close()
