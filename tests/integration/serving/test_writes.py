"""INSERT, UPDATE and DELETE over PostgreSQL's protocol: what comes into the topics of tables, errors, transactions, and who may."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.support.served_views import CATALOG, KINDS, ViewServer, make_pipeline, serving
from tests.support.state_tables import TABLE
from tests.support.tokens import SECRET, token

PEOPLE_ID = 77


def catalog(url: str) -> list[dict[str, Any]]:
    tables = (
        f"CREATE TABLE delays (k VARCHAR, n BIGINT, v DOUBLE PRECISION, PRIMARY KEY (k, n)) WITH (service.url = '{url}', topic = 'delays')",
        "CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR NOT NULL, score DOUBLE PRECISION, upper_name VARCHAR AS upper(name), "
        f"price NUMERIC(8, 2), day DATE, doc JSONB) WITH (service.url = '{url}', topic = 'people')",
        f"CREATE TABLE loose (a INT, b VARCHAR) WITH (service.url = '{url}', topic = 'loose')",
        f"CREATE TABLE log (id INT NOT NULL, word VARCHAR) APPEND ONLY WITH (service.url = '{url}', topic = 'log')",
        f"CREATE TABLE fed (a INT) WITH (connector = 'pulsar', service.url = '{url}', topic = 'x') FORMAT PLAIN ENCODE JSON",
    )
    tables += ("CREATE FUNCTION twice(x BIGINT) RETURNS BIGINT LANGUAGE sql AS 'x + x'",)
    found = [item for item in CATALOG if item["name"] in ("f", "kinds")]
    found = found + [
        {"name": text.split()[2].partition("(")[0], "statement": text, "parallelism": None} for text in tables
    ]
    for item in found:
        if item["name"] == "delays":
            item["comments"] = {"": "what is late", "v": "in minutes"}
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with closing(ServerProcess(tmp_path_factory.mktemp("broker") / "data").start()) as found:
        yield found


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, broker: ServerProcess) -> Iterator[ViewServer]:
    home = tmp_path_factory.mktemp("home")
    put_pipeline(home, broker.service_url)
    with serving(home, "flights") as found:
        yield found


def put_pipeline(home: Path, url: str) -> None:
    harness = make_pipeline(home / "pipelines" / "flights")
    ids = {"delays": TABLE.table_id, "kinds": KINDS.table_id, "people": PEOPLE_ID, "loose": PEOPLE_ID + 1}
    unread = {"persistent://public/default/people": {"ledger": -1, "entry": -1, "batch": 0}}
    harness.commit(views={"catalog": catalog(url), "tables": ids, "stages": {}}, sources={"people": unread})


@pytest.fixture
def connection(tables: ViewServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(tables.dsn(), autocommit=True) as found:
        yield found


class Topic:
    """What comes into a topic from now on."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._reader = client.create_reader(f"persistent://public/default/{topic}", pulsar.MessageId.latest)

    def new(self) -> list[tuple[str, Any]]:
        """Key and row, None for one that goes."""
        found = []
        while self._reader.has_message_available():
            message = self._reader.read_next(20_000)
            found.append((message.partition_key(), json.loads(message.data()) if message.data() else None))
        return found


@pytest.fixture
def people(broker: ServerProcess, tables: ViewServer) -> Iterator[Topic]:
    client = pulsar.Client(broker.service_url)
    yield Topic(client, "people")
    client.close()


@pytest.fixture
def delays(broker: ServerProcess, tables: ViewServer) -> Iterator[Topic]:
    client = pulsar.Client(broker.service_url)
    yield Topic(client, "delays")
    client.close()


def test_rows_are_in_the_topic_when_the_statement_is_answered(
    connection: psycopg.Connection[Any], people: Topic
) -> None:
    done = connection.execute("INSERT INTO people VALUES (1, 'Ann', 'NaN'), (%s, %s, 3)", [2, "Bob"])
    assert (done.statusmessage, done.rowcount) == ("INSERT 0 2", 2)
    rest = {"price": None, "day": None, "doc": None}
    assert people.new() == [
        ("1", {"id": 1, "name": "Ann", "score": "NaN", **rest}), ("2", {"id": 2, "name": "Bob", "score": 3.0, **rest}),
    ]  # fmt: skip
    connection.execute("INSERT INTO public.people (name, id, doc) SELECT label, id, '[1]' FROM kinds WHERE id = 1")
    row = {"id": 1, "name": "plain", "score": None, "price": None, "day": None, "doc": "[1]"}
    assert people.new() == [("1", row)]
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO people (id, name) VALUES (%s, %s)", [(number, "x") for number in range(100)])
        assert cursor.rowcount == 100
    assert [key for key, _ in people.new()] == [str(number) for number in range(100)]
    assert connection.execute("SELECT * FROM people").fetchall() == []  # which has had no epoch yet
    assert connection.execute("UPDATE people SET name = 'x' WHERE id = %s", [1]).rowcount == 0
    assert people.new() == []


def test_update_and_delete_write_what_they_read(connection: psycopg.Connection[Any], delays: Topic) -> None:
    assert connection.execute("UPDATE delays SET v = v * 2 + %s WHERE k = %s AND n = 57", [1, "k7"]).rowcount == 1
    assert delays.new() == [('{"k":"k7","n":57}', {"k": "k7", "n": 57, "v": 29.5})]
    done = connection.execute("DELETE FROM delays AS d WHERE d.k > 'k' AND EXISTS (SELECT 1 FROM kinds WHERE id = d.n)")
    assert done.statusmessage == "DELETE 3"
    assert sorted(delays.new()) == [(f'{{"k":"k{n}","n":{n}}}', None) for n in (1, 2, 3)]
    done = connection.execute("UPDATE delays SET (v) = (NULL) WHERE k = 'k3'")
    assert done.statusmessage == f"UPDATE {len(delays.new())}" == "UPDATE 40"


def test_returning_gives_the_rows_that_are_written(
    tables: ViewServer, connection: psycopg.Connection[Any], people: Topic, delays: Topic
) -> None:
    cursor = connection.execute(
        "INSERT INTO people AS p (id, name, price) VALUES (1, 'Ann', 2.5), (%s, 'Bob', NULL) "
        "RETURNING id, p.name || '!' AS loud, upper_name, price, %s + id, (SELECT count(*) FROM kinds) AS c",
        [2, 10],
    )
    assert [column.name for column in cursor.description or ()][:5] == ["id", "loud", "upper_name", "price", "?column?"]
    assert cursor.fetchall() == [(1, "Ann!", "ANN", Decimal("2.50"), 11, 3), (2, "Bob!", "BOB", None, 12, 3)]
    assert (cursor.statusmessage, [key for key, _ in people.new()]) == ("INSERT 0 2", ["1", "2"])
    cursor = connection.execute("UPDATE delays SET v = v + 1 WHERE k = 'k7' AND n = 57 RETURNING *, v - 1 AS before")
    assert (cursor.fetchall(), cursor.statusmessage) == ([("k7", 57, 15.25, 14.25)], "UPDATE 1")
    assert delays.new() == [('{"k":"k7","n":57}', {"k": "k7", "n": 57, "v": 15.25})]
    cursor = connection.execute("DELETE FROM delays AS d WHERE n = 57 RETURNING v, d.k", binary=True)
    assert (cursor.fetchall(), cursor.statusmessage) == ([(14.25, "k7")], "DELETE 1")
    assert delays.new() == [('{"k":"k7","n":57}', None)]
    cursor = connection.execute("UPDATE delays SET v = 1 WHERE k = 'nobody' RETURNING k")
    assert (cursor.fetchall(), cursor.statusmessage) == ([], "UPDATE 0")
    many = "INSERT INTO loose SELECT x, 'y' FROM generate_series(1, 5000) AS g(x) RETURNING a"
    assert sum(a for (a,) in connection.execute(many)) == 5000 * 5001 // 2
    with psycopg.connect(tables.dsn()) as other:
        assert other.execute("INSERT INTO people VALUES (9, 'Eve') RETURNING id").fetchall() == [(9,)]
        assert people.new() == []
        other.rollback()
    assert people.new() == []
    said = tables.psql("INSERT INTO loose VALUES (1, 'x'), (2, NULL) RETURNING *")
    assert said == " a | b \n---+---\n 1 | x\n 2 | \n(2 rows)\n\nINSERT 0 2\n"


def test_a_table_that_only_grows_takes_inserts(broker: ServerProcess, connection: psycopg.Connection[Any]) -> None:
    client = pulsar.Client(broker.service_url)
    log = Topic(client, "log")
    assert connection.execute("INSERT INTO log VALUES (1, 'a'), (1, 'a') RETURNING id").fetchall() == [(1,), (1,)]
    sent = log.new()
    assert [row for _, row in sent] == [{"id": 1, "word": "a"}] * 2
    assert len({key for key, _ in sent}) == 2
    for statement, verb in (("UPDATE log SET word = 'b'", "UPDATE"), ("DELETE FROM log", "DELETE")):
        with pytest.raises(psycopg.errors.FeatureNotSupported, match=f'"log" is APPEND ONLY, so {verb} is refused'):
            connection.execute(statement)
    with pytest.raises(psycopg.errors.NotNullViolation):
        connection.execute("INSERT INTO log (word) VALUES ('b')")
    assert log.new() == []
    client.close()


def test_comments_are_in_the_catalogs(tables: ViewServer, connection: psycopg.Connection[Any]) -> None:
    asked = "SELECT obj_description('delays'::regclass, 'pg_class'), obj_description('people'::regclass)"
    assert connection.execute(asked).fetchone() == ("what is late", None)
    columns = (
        "SELECT a.attname, col_description(a.attrelid, a.attnum) FROM pg_attribute a "
        "WHERE a.attrelid = 'delays'::regclass AND a.attnum > 0 ORDER BY a.attnum"
    )
    assert connection.execute(columns).fetchall() == [("k", None), ("n", None), ("v", "in minutes")]
    assert "what is late" in tables.psql(r"\dt+")
    assert "in minutes" in tables.psql(r"\d+ delays")


def test_transactions_send_at_commit(tables: ViewServer, people: Topic) -> None:
    with psycopg.connect(tables.dsn()) as connection:
        connection.execute("INSERT INTO people VALUES (10, 'Eve')")
        connection.execute("SAVEPOINT a")
        connection.execute("INSERT INTO people VALUES (11, 'Fay')")
        connection.execute("ROLLBACK TO SAVEPOINT a")
        connection.execute("INSERT INTO people VALUES (12, 'Gil')")
        assert people.new() == []
        connection.commit()
        assert [key for key, _ in people.new()] == ["10", "12"]
        connection.execute("INSERT INTO people VALUES (13, 'Hal')")
        connection.rollback()
        connection.execute("INSERT INTO people VALUES (14, 'Ida')")
        with pytest.raises(psycopg.errors.NotNullViolation):
            connection.execute("INSERT INTO people VALUES (15, NULL)")
        connection.commit()  # which rolls back
        connection.read_only = True
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("INSERT INTO people VALUES (16, 'Joe')")
        connection.rollback()
    assert people.new() == []


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("INSERT INTO people VALUES (NULL, 'x')", "23502"),
        ("INSERT INTO people (id) VALUES (1)", "23502"),
        ("INSERT INTO people VALUES (7, 'good'), (8, NULL)", "23502"),
        ("INSERT INTO people VALUES ('x', 'y')", "22P02"),
        ("INSERT INTO people VALUES (3000000000, 'y')", "22003"),
        ("INSERT INTO people (id, name, price) VALUES (1, '', 12345678.9)", "22003"),
        ("INSERT INTO people (id, name, day) VALUES (1, '', '2024-02-30')", "22008"),
        ("INSERT INTO people (id, name, day) VALUES (1, '', 'soon')", "22007"),
        ("INSERT INTO people (id, name, doc) VALUES (1, '', '{')", "22P02"),
        ("INSERT INTO people (id, nothing) VALUES (1, 2)", "42703"),
        ("UPDATE people SET nothing = 1", "42703"),
        ("DELETE FROM delays WHERE nothing = 1", "42703"),
        ("UPDATE delays SET n = 1", "0A000"),
        ("UPDATE delays SET v = 1/0", "22012"),
        ("UPDATE delays SET v = 'x'", "22P02"),
        ("UPDATE delays SET v = 1 FROM kinds", "0A000"),
        ("INSERT INTO nothing VALUES (1)", "42P01"),
        ("INSERT INTO other.people VALUES (1)", "42P01"),
        ("INSERT INTO kinds VALUES ('x', 1)", "42809"),
        ("INSERT INTO fed VALUES (1)", "42809"),
        ("INSERT INTO people VALUES (1, 'x', 2, 3, '2024-01-01', '1', 7)", "42601"),
        ("INSERT INTO people (id, name) VALUES (1)", "42601"),
        ("INSERT INTO people VALUES (1, 'x'), (2)", "42601"),
        ("INSERT INTO people (id, id) VALUES (1, 1)", "42701"),
        ("INSERT INTO people (id, name, upper_name) VALUES (1, 'x', 'X')", "428C9"),
        ("INSERT INTO people VALUES (1, 'x') ON CONFLICT DO NOTHING", "0A000"),
        ("DELETE FROM people RETURNING count(*)", "42803"),
        ("INSERT INTO people VALUES (1, 'x') RETURNING nothing", "42703"),
        ("INSERT INTO people VALUES (1, 'x') RETURNING 1 / (id - 1)", "22012"),
        ("INSERT INTO people DEFAULT VALUES", "0A000"),
        ("INSERT INTO people VALUES", "42601"),
        ("INSERT INTO people SELECT 1, getenv('HOME')", "42883"),
        ("INSERT INTO people VALUES (1, getenv('HOME'))", "42883"),
        ("INSERT INTO people SELECT 1, (SELECT content FROM read_text('/etc/passwd'))", "42883"),
        ("INSERT INTO people VALUES (1, '" + "x" * 6_000_000 + "')", "54000"),
    ],
)  # fmt: skip
def test_what_is_refused_says_why_and_writes_nothing(
    connection: psycopg.Connection[Any], people: Topic, delays: Topic, statement: str, code: str
) -> None:
    with pytest.raises(psycopg.Error) as raised:
        connection.execute(statement)
    assert raised.value.sqlstate == code, str(raised.value)[:300]
    assert people.new() == delays.new() == []
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_functions_of_the_pipeline_are_known(
    connection: psycopg.Connection[Any], people: Topic, tables: ViewServer
) -> None:
    assert connection.execute("SELECT twice(n + %s) AS t FROM delays WHERE k = 'k7' AND n = 57", [1]).fetchall() == [
        (116,)
    ]
    assert connection.execute("INSERT INTO people (id, name) VALUES (twice(%s), 'x')", [21]).rowcount == 1
    assert [key for key, _ in people.new()] == ["42"]
    with pytest.raises(psycopg.errors.SyntaxError, match="takes 1 arguments and is given 2"):
        connection.execute("SELECT twice(1, 2)")
    assert "twice" not in tables.psql(r"\d")


def test_psql(tables: ViewServer) -> None:
    said = tables.psql(
        "INSERT INTO people VALUES (20, 'Jo''s')",
        "UPDATE delays SET v = 5 WHERE k = 'k1' AND n = 1",
        "DELETE FROM people",
    )
    assert said == "INSERT 0 1\nUPDATE 1\nDELETE 0\n"
    refused = tables.psql("INSERT INTO people VALUES (1)", code=1)
    assert 'null value in column "name" of relation "people" violates not-null constraint' in refused
    refused = tables.psql("INSERT INTO people VALUES (20, 'x')", "FLUSH", code=1)
    assert "pipeline flights does not run: what was written is durable" in refused


def test_who_may_produce_may_write(tmp_path: Path) -> None:
    """Each client writes with the token that it showed: the broker decides."""
    key = f"data:;base64,{base64.b64encode(SECRET).decode()}"
    security = {
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "authorizationEnabled": "true",
        "superUserRoles": "admin",
        "tokenSecretKey": key,
        "brokerClientAuthenticationPlugin": "token",
        "brokerClientAuthenticationParameters": f"token:{token('admin')}",
    }
    with closing(ServerProcess(tmp_path / "data", security).start()) as broker:
        put_pipeline(tmp_path, broker.service_url)
        settings = {name: security[name] for name in security if not name.startswith("brokerClient")}
        with serving(tmp_path, "flights", settings=settings | {"viewReaderRoles": "reader"}) as views:

            def insert(role: str) -> int:
                with psycopg.connect(views.dsn(role), password=token(role), autocommit=True) as connection:
                    assert connection.execute("SELECT count(*) FROM kinds").fetchone() == (3,)
                    return connection.execute("INSERT INTO people VALUES (1, 'x')").rowcount

            assert insert("admin") == 1
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="does not let this role produce"):
                insert("reader")
    with serving(tmp_path, "flights") as views, psycopg.connect(views.dsn(), autocommit=True) as connection:
        with pytest.raises(psycopg.OperationalError) as raised:  # nobody listens there any more
            connection.execute("INSERT INTO people VALUES (1, 'x')")
        assert raised.value.sqlstate == "58030"
