"""What an edited file changes: what keeps its state, what is built again and why, and what is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.pipeline.errors import CatalogError, PlanRefusedError
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.changes import applied, changes, rebuilds
from magnetar.pipeline.sql.expressions import with_relation_renamed
from magnetar.pipeline.sql.parser import parse
from magnetar.pipeline.views.pipeline import Pipeline

FILE = """
CREATE SOURCE s (a INT, x BIGINT) WITH (connector='pulsar', topic='t', auth.token='s3cr3t') FORMAT PLAIN ENCODE JSON;
CREATE TABLE t (id INT PRIMARY KEY, x BIGINT) WITH (connector='pulsar', topic='u') FORMAT UPSERT ENCODE JSON;
CREATE MATERIALIZED VIEW v AS SELECT a, sum(x) AS total FROM s GROUP BY a;
CREATE MATERIALIZED VIEW w AS SELECT total, count(*) AS n FROM v GROUP BY total;
CREATE SINK k FROM w WITH (connector='pulsar', topic='out');
"""


def told(edited: str, known: str = FILE) -> list[str]:
    before = applied(Catalog(), parse(known))
    return [change.describe() for change in changes(before, applied(before, parse(edited)), parse(edited))]


S, TABLE_T = "x BIGINT) WITH (connector='pulsar', topic='t'", "id INT PRIMARY KEY, x"
V, W, K = "! rebuild MATERIALIZED VIEW v: ", "! rebuild MATERIALIZED VIEW w: ", "! rebuild SINK k: "
READERS = [f"{W}v, which it reads, is built again", f"{K}w, which it reads, is built again"]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("nothing", "", []),
        ("topic='t',", "topic='t', on.decode.error = 'skip',", ["~ change SOURCE s: on.decode.error = 'skip'"]),
        ("s3cr3t", "0ther", []),
        (
            "topic='t',",
            "topic='t', startingOffsets='latest',",
            ["~ change SOURCE s: startingoffsets, which counts only where a source has not begun"],
        ),
        (S, S.replace(")", ", y INT)", 1), ["~ change SOURCE s: new column y"]),
        ("topic='out'", "topic='elsewhere'", ["~ change SINK k: topic = 'elsewhere'"]),
        (
            "topic='t'",
            "topic='other'",
            ["! rebuild SOURCE s: it reads another topic", f"{V}s, which it reads, is built again", *READERS],
        ),
        (
            S,
            S.replace("BIGINT", "NUMERIC"),
            ["~ change SOURCE s: column x is another one", f"{V}the type of s.x is another one", *READERS],
        ),
        ("count(*) AS n", "max(total) AS n", [f"{W}its query is another one", READERS[1]]),
        ("sum(x)  AS total", "sum(x) AS total", []),
        (
            "VIEW v AS",
            "VIEW v WITH (vnode.hash = 'segment') AS",
            [f"{V}vnode.hash = 'segment' places its rows in other vnodes", *READERS],
        ),
        (
            TABLE_T,
            TABLE_T.replace("x", "y INT, x"),
            ["! rebuild TABLE t: its columns are others, and its rows are stored with them"],
        ),
        ("CREATE SINK", "CREATE MATERIALIZED VIEW z AS SELECT a FROM s; CREATE SINK", ["+ create MATERIALIZED VIEW z"]),
        ("CREATE SINK k FROM w WITH (connector='pulsar', topic='out');", "DROP SINK k;", ["- drop SINK k"]),
        (
            "CREATE SINK",
            "ALTER SOURCE s SET (on.decode.error = 'dead_letter', dead.letter.topic = 'd'); CREATE SINK",
            ["~ change SOURCE s: dead.letter.topic = 'd', on.decode.error = 'dead_letter'"],
        ),
    ],
)
def test_an_edited_file(old: str, new: str, found: list[str]) -> None:
    assert told(FILE.replace(old, new)) == found


def test_a_part_of_the_statements_leaves_the_others_as_they_are() -> None:
    assert told("ALTER SOURCE S SET (ON.DECODE.ERROR = 'strict')") == ["~ change SOURCE s: on.decode.error = 'strict'"]
    assert told("ALTER SINK k SET (topic = 'b')") == ["~ change SINK k: topic = 'b'"]
    assert told("CREATE MATERIALIZED VIEW v AS SELECT a, sum(x) AS total, count(*) AS c FROM s GROUP BY a") == [
        "! rebuild MATERIALIZED VIEW v: its query is another one",
        "! rebuild MATERIALIZED VIEW w: v, which it reads, is built again",
        "! rebuild SINK k: w, which it reads, is built again",
    ]
    behind_encode = FILE.replace("ENCODE JSON;", "ENCODE JSON (on.decode.error = 'skip');", 1)
    assert told("ALTER SOURCE s SET (on.decode.error = 'null')", behind_encode) == [
        "~ change SOURCE s: on.decode.error = 'null', on.decode.error goes"
    ]


def test_what_reads_a_column_that_goes_is_named_with_its_place() -> None:
    with pytest.raises(PlanRefusedError, match="s has no column x"):
        told(
            FILE.replace(
                "x BIGINT) WITH (connector='pulsar', topic='t'", "z BIGINT) WITH (connector='pulsar', topic='t'"
            )
        )
    edited = FILE.replace(
        "x BIGINT) WITH (connector='pulsar', topic='t'", "z BIGINT) WITH (connector='pulsar', topic='t'"
    )
    assert told(edited.replace("sum(x)", "sum(z)"))[:2] == [
        "~ change SOURCE s: new column z, column x goes",
        "! rebuild MATERIALIZED VIEW v: its query is another one",
    ]


def test_a_definition_is_once_in_a_file_and_parallelism_stays() -> None:
    with pytest.raises(CatalogError, match="defined twice"):
        told(FILE + "CREATE MATERIALIZED VIEW v AS SELECT a FROM s;")
    with pytest.raises(CatalogError, match="s is a SOURCE; write ALTER SOURCE s SET"):
        told("ALTER SINK s SET (a = 'b')")
    before = applied(Catalog(), parse(FILE + "ALTER MATERIALIZED VIEW v SET PARALLELISM = 3;"))
    after = applied(before, parse(FILE.replace("topic='t',", "topic='t', on.decode.error = 'skip',")))
    assert after.find("v").parallelism == 3
    assert sorted(after.topological()) == ["k", "s", "t", "v", "w"]


OLDER = """
CREATE SOURCE s (k VARCHAR, n BIGINT, f DOUBLE PRECISION, ts TIMESTAMP)
WITH (connector = 'pulsar', service.url = 'pulsar://localhost:6650', topic = 'persistent://public/default/up', startingOffsets = 'earliest')
FORMAT PLAIN ENCODE JSON;
CREATE MATERIALIZED VIEW plain AS SELECT k, count(*) AS c, sum(n) AS total FROM s GROUP BY k;
CREATE MATERIALIZED VIEW hours AS SELECT k, extract(hour FROM ts) AS h FROM s;
CREATE MATERIALIZED VIEW rounded AS SELECT k, round(n) AS r FROM s;
CREATE MATERIALIZED VIEW halves AS SELECT k, round(f) AS r FROM s;
CREATE MATERIALIZED VIEW by_hour AS SELECT extract(hour FROM ts) AS h, count(*) AS c FROM s GROUP BY extract(hour FROM ts);
CREATE MATERIALIZED VIEW over AS SELECT c, count(*) AS ks FROM plain GROUP BY c;
"""


def test_rows_that_another_version_computed_are_not_gone_on_with(tmp_path: Path) -> None:
    """A manifest of commit c22bbeb, whose `extract` and `round` gave other types and values, and which says nothing of its plans."""
    (tmp_path / "manifests").mkdir()
    manifest = Path(__file__).with_name("manifest-without-plans.json").read_bytes()
    (tmp_path / "manifests/MANIFEST-00000000000000000002.json").write_bytes(manifest)
    pipeline = Pipeline("up", str(tmp_path))
    pipeline.sql(OLDER)
    lost = [change for change in pipeline.changes() if not change.keeps_state]
    assert [change.name for change in lost] == ["hours", "rounded", "halves", "by_hour"]
    assert {change.why for change in lost} == {
        "another version of magnetar stored its rows, and may have computed its expressions in another way"
    }


def test_a_manifest_says_by_which_plans_its_rows_were_computed() -> None:
    now = applied(Catalog(), parse(OLDER))
    plain = now.to_plain()
    assert not changes(Catalog.from_plain(plain), applied(Catalog.from_plain(plain), parse(OLDER)))
    (at,) = (number for number, item in enumerate(plain) if item["name"] == "plain")
    plain[at]["plan"] = "of another version"
    known = Catalog.from_plain(plain)
    assert [(each.action, each.name) for each in changes(known, applied(known, ()))] == [
        ("rebuild", "plain"),
        ("rebuild", "over"),
    ]


def test_what_reads_rows_that_do_not_fit_is_built_again_as_well() -> None:
    found = rebuilds(applied(Catalog(), parse(FILE)), {"v": "another key"})
    assert [change.describe() for change in found] == [f"{V}another key", *READERS]


RENAMES = """
ALTER SOURCE s RENAME TO orders;
ALTER MATERIALIZED VIEW v RENAME TO "Totals";
ALTER SINK k RENAME TO sent;
"""
RENAMED = [
    "~ rename SOURCE orders: it was s",
    "~ rename MATERIALIZED VIEW Totals: it was v",
    "~ rename SINK sent: it was k",
]


def test_a_rename_keeps_what_there_is_and_is_done_once() -> None:
    assert told(RENAMES) == RENAMED, "what the file does not define is rewritten"
    edited = FILE
    for old, new in {"SOURCE s ": "SOURCE orders ", "FROM s ": "FROM orders ", "SINK k": "SINK sent"}.items():
        edited = edited.replace(old, new)
    edited = RENAMES + edited.replace("VIEW v ", 'VIEW "Totals" ').replace("FROM v ", 'FROM "Totals" ')
    assert told(edited) == RENAMED, "what it defines means the same"
    before = applied(applied(Catalog(), parse(FILE)), parse(edited))
    assert list(before.entries) == ["orders", "t", "Totals", "w", "sent"]
    assert [str(each) for each in changes(before, applied(before, parse(edited)), parse(edited))] == []
    assert list(applied(Catalog(), parse(edited)).entries) == ["orders", "t", "Totals", "w", "sent"], (
        "nothing to rename yet"
    )
    assert list(Catalog.from_plain(before.to_plain()).entries) == list(before.entries)


@pytest.mark.parametrize(
    ("query", "rewritten"),
    [
        (
            "SELECT v.a, x.total FROM v JOIN v AS x ON v.a = x.a",
            "SELECT v.a, x.total FROM n AS v JOIN n AS x ON v.a = x.a",
        ),
        ("SELECT a FROM w WHERE a IN (SELECT a FROM V)", "SELECT a FROM w WHERE a IN (SELECT a FROM n AS V)"),
        ("SELECT a FROM TUMBLE(v, ts, INTERVAL '1 hour')", "SELECT a FROM TUMBLE(n, ts, INTERVAL '1 hour')"),
        ("WITH v AS (SELECT 1 AS a FROM t) SELECT a FROM v", "WITH v AS (SELECT 1 AS a FROM t) SELECT a FROM v"),
        ('SELECT "v".v FROM "v"', 'SELECT "v".v FROM n AS "v"'),
    ],
)
def test_a_query_over_another_name(query: str, rewritten: str) -> None:
    assert with_relation_renamed(query, "v", "n") == rewritten


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ALTER MATERIALIZED VIEW v RENAME TO w;", "w exists already"),
        ("ALTER SOURCE v RENAME TO n;", "v is a MATERIALIZED VIEW"),
        ("ALTER SOURCE gone RENAME TO n;", "neither gone nor n exists"),
    ],
)
def test_a_rename_that_does_not_fit_is_refused(text: str, why: str) -> None:
    with pytest.raises(CatalogError, match=why):
        applied(applied(Catalog(), parse(FILE)), parse(text))


def test_a_view_under_another_name_says_how_to_keep_its_rows() -> None:
    (line,) = told("CREATE MATERIALIZED VIEW v2 AS SELECT a, sum(x) AS total FROM s GROUP BY a;")
    assert line.endswith("ALTER MATERIALIZED VIEW v RENAME TO v2 in front of it would keep its rows")
