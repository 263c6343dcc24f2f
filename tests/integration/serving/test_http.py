"""Queries over HTTP: JSON and Arrow, the rights of PostgreSQL's port, and statements that end with their client or their time."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pyarrow as pa
import pytest

from tests.support.served_views import DELAYS, ViewServer, serving
from tests.support.state_tables import StateTableHarness
from tests.support.tokens import SECRET, token

ENDLESS = "SELECT count(*) FROM generate_series(1, 1000000) AS a CROSS JOIN generate_series(1, 100000000) AS b WHERE a % 7 = b % 11"
FOUR = 4
"""Queries that run at a time over HTTP."""


@pytest.fixture(scope="module")
def open_server(home: Path, harness: StateTableHarness) -> Iterator[ViewServer]:
    with serving(home, "flights", settings={"viewHttpPort": 0}) as found:
        yield found


def ask(
    server: ViewServer, query: str | None, *, method: str = "GET", path: str = "", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    parts = urlsplit(server.http_url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
    target = path or parts.path
    if method == "GET" and query is not None:
        target += f"?query={quote(query)}"
    sent = query.encode() if method == "POST" and query is not None else None
    try:
        connection.request(method, target, sent, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def found(server: ViewServer, query: str, **options: str) -> dict[str, object]:
    status, _, body = ask(server, query, **options)
    assert status == 200, body
    document = json.loads(body)
    assert isinstance(document, dict)
    return document


def test_json(open_server: ViewServer) -> None:
    answer = found(open_server, "SELECT id, price, at, raw, numbers, nested, single FROM kinds ORDER BY id LIMIT 2")
    assert answer["columns"] == [
        {"name": "id", "type": "bigint"}, {"name": "price", "type": "numeric"}, {"name": "at", "type": "timestamp with time zone"},
        {"name": "raw", "type": "bytea"}, {"name": "numbers", "type": "bigint[]"}, {"name": "nested", "type": "json"},
        {"name": "single", "type": "real"},
    ]  # fmt: skip
    assert answer["rows"] == [
        [1, "1234.50", "2024-02-29T12:30:01.250000+00:00", "\\x00ff61", [1, None, -3], {"a": 1, "b": "x"}, 1.5],
        [2, None, None, None, None, None, None],
    ]
    assert found(open_server, "SELECT 'NaN'::float8 AS x, 1 AS x", method="POST")["rows"] == [["NaN", 1]]
    assert found(open_server, "SELECT k FROM late WHERE false")["rows"] == []
    rows = found(open_server, "SELECT k, n, v FROM delays")["rows"]
    assert isinstance(rows, list)
    assert {(k, n): v for k, n, v in rows} == DELAYS
    epoch = answer["epoch"]
    assert found(open_server, f"SELECT count(*) FROM delays AS OF EPOCH {epoch}")["epoch"] == epoch


def test_arrow(open_server: ViewServer) -> None:
    status, headers, body = ask(
        open_server, "SELECT k, n, v AS value FROM delays ORDER BY n, k", Accept="application/vnd.apache.arrow.stream"
    )
    assert (status, headers["content-type"]) == (200, "application/vnd.apache.arrow.stream")
    table = pa.ipc.open_stream(body).read_all()
    assert table.column_names == ["k", "n", "value"]
    assert {(row["k"], row["n"]): row["value"] for row in table.to_pylist()} == DELAYS
    _, _, body = ask(open_server, "SELECT k FROM delays WHERE false", Accept="application/vnd.apache.arrow.stream, */*")
    assert pa.ipc.open_stream(body).read_all().num_rows == 0


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [("SELECT * FROM nothing", 400, "does not exist"), ("DROP VIEW late", 400, "only reads"), ("SELECT 1; SELECT 2", 400, "one statement"),
     ("SELECT $1", 400, "parameters"), ("", 400, "missing"), ("SELECT 1/0", 400, "division by zero"), ("SELEC", 400, ""),
     ("SELECT " + "(" * 3000 + "1" + ")" * 3000, 400, ""), ("SELECT * FROM read_text('/etc/passwd')", 400, "not supported"),
     ("SELECT '" + "x" * 300_000 + "'", 413, "longer than")],
)  # fmt: skip
def test_what_is_not_answered_says_why(open_server: ViewServer, query: str, status: int, words: str) -> None:
    got, _, body = ask(open_server, query, method="POST")
    assert got == status
    assert words in str(json.loads(body))
    assert found(open_server, "SELECT 1")["rows"] == [[1]]


def test_paths_methods_and_pages_of_other_sites(open_server: ViewServer) -> None:
    assert ask(open_server, None, path="/healthz")[0] == 200
    assert ask(open_server, "SELECT 1", path="/sql/other")[0] == 404
    assert ask(open_server, "SELECT 1", path="/other")[0] == 404
    assert ask(open_server, "SELECT 1", method="DELETE")[0] == 405
    assert ask(open_server, "SELECT 1", Origin="http://evil.example")[0] == 403
    assert ask(open_server, "SELECT 1", Host="evil.example")[0] == 421
    assert ask(open_server, b"\xff".decode("latin-1"), method="POST")[0] == 400


def test_a_client_that_leaves_takes_its_query_with_it(open_server: ViewServer) -> None:
    """As many endless ones as may run at a time: an answer to the next one shows that they are over."""
    parts = urlsplit(open_server.http_url)
    connections = [socket.create_connection((parts.hostname, parts.port), timeout=60) for _ in range(FOUR)]
    for connection in connections:
        connection.sendall(f"GET {parts.path}?query={quote(ENDLESS)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    for connection in connections:
        connection.close()
    assert found(open_server, "SELECT 1")["rows"] == [[1]]


def test_roles_are_those_of_postgresqls_port(home: Path, harness: StateTableHarness) -> None:
    settings = {
        "viewHttpPort": 0,
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "authorizationEnabled": "true",
        "viewReaderRoles": "flights:alice",
        "tokenSecretKey": f"data:;base64,{base64.b64encode(SECRET).decode()}",
    }
    with serving(home, "flights", settings=settings) as server:
        alice = {"Authorization": f"Bearer {token('alice')}"}
        assert found(server, "SELECT current_user", **alice)["rows"] == [["alice"]]
        assert ask(server, "SELECT 1")[0] == 401
        assert ask(server, "SELECT 1", Authorization=f"Bearer {token('alice', secret=b'x' * 32)}")[0] == 401
        bob = {"Authorization": f"Bearer {token('bob')}"}
        assert ask(server, "SELECT 1", **bob)[0] == 403
        for stranger in (alice, bob):  # who may not read a pipeline does not learn whether it is there
            assert ask(server, "SELECT 1", path="/sql/nothing", **stranger)[0] == 403
        with psycopg.connect(server.dsn("alice"), password=token("alice"), autocommit=True) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_statement_ends_when_its_time_is_over(home: Path, harness: StateTableHarness) -> None:
    settings = {"viewHttpPort": 0, "statementTimeoutSeconds": "0.5"}
    with serving(home, "flights", settings=settings) as server:
        status, _, body = ask(server, ENDLESS)
        assert status == 503
        assert "statement timeout" in json.loads(body)["reason"]
        with psycopg.connect(server.dsn(), autocommit=True) as connection, pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(ENDLESS)
