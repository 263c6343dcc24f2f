"""Files of sqllogictest are read and judged as their own runner does. RisingWave's files run where somebody has a checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import compat_risingwave  # noqa: E402  # behind the line that finds it
from compat import allow_list  # noqa: E402  # behind the line that finds it
from sqllogictest import FormatError, Record, difference, is_expected, read, shown  # noqa: E402  # behind the line that finds it

FILE = """# a remark
statement ok
create table t (a int,
  b varchar);

include ./part.slt.part

statement error division
select 1/0;

statement error
select wrong
----
db error: it is
wrong


connection other
query IT rowsort retry 2 backoff 500ms
select * from t;
----
2  x
1 NULL

skipif madsim
onlyif nobody
statement ok
not for us

skipif madsim
statement count 2

insert into t values (1), (2);

halt
"""


def test_a_file_and_what_it_includes_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.slt").write_text(FILE)
    (tmp_path / "part.slt.part").write_text("sleep 1s\n")
    create, sleep, regex, exact, query, insert, halt = read(tmp_path / "a.slt", tmp_path)
    assert (create.where, create.sql) == ("a.slt:2", "create table t (a int,\n  b varchar);")
    assert (sleep.where, sleep.pause_s) == ("part.slt.part:1", 1.0)
    assert (regex.error, regex.exact) == ("division", False)
    assert (exact.error, exact.exact) == ("db error: it is\nwrong", True)
    assert (query.connection, query.times, query.pause_s, query.sort) == ("other", 3, 0.5, "rowsort")
    assert (insert.count, insert.sql, insert.connection) == (2, "insert into t values (1), (2);", "")
    assert halt.kind == "halt"
    (tmp_path / "b.slt").write_text("statement ok\n\n\nselect 1\n")
    with pytest.raises(FormatError, match="select is not known"):
        read(tmp_path / "b.slt", tmp_path)


def test_rows_and_errors_are_compared() -> None:
    record = Record("", "query", rows=("2  x", "1 NULL"), sort="rowsort")
    rows = [["1", shown(None)], ["2", shown(b"x")]]
    assert difference(record, rows) is None
    assert difference(Record("", "query", rows=record.rows), rows) == "'1 NULL' instead of '2 x'"
    assert difference(record, rows[:1]) == "1 rows instead of 2"
    assert difference(Record("", "query"), rows) is None
    assert difference(Record("", "query", rows=("(empty)",)), [[shown(b"")]]) is None
    assert is_expected(Record("", "statement", error=""), "ERROR: anything")
    assert not is_expected(Record("", "statement", error="Division"), "ERROR: division by zero")
    assert not is_expected(Record("", "statement"), "ERROR: anything")


def test_a_gathering_file_stands_for_those_that_it_includes(tmp_path: Path) -> None:
    (tmp_path / "batch" / "basic").mkdir(parents=True)
    (tmp_path / "batch" / "local_mode.slt").write_text("statement ok\nset x to 1\n\ninclude ./basic/**/*.slt.part\n")
    (tmp_path / "batch" / "basic" / "one.slt.part").write_text("query I\nselect 1\n----\n1\n")
    (tmp_path / "batch" / "basic" / "two.slt.part").write_text("system ok\npsql\n")
    found = compat_risingwave.tests(tmp_path)
    assert list(found) == ["batch/basic/one.slt.part", "batch/basic/two.slt.part"]
    assert [record.sql for record in found["batch/basic/one.slt.part"][0]] == ["set x to 1", "select 1"]
    why = [compat_risingwave.needs_another_system(records) for records, _ in found.values()]
    assert [bool(each) for each in why] == [False, True]


def test_every_entry_of_the_list_has_a_reason() -> None:
    entries = allow_list(compat_risingwave.ALLOWED.read_text(encoding="utf-8"))
    assert all(file.startswith(("batch/", "streaming/")) and len(reason) > 10 for file, reason in entries.items())


def test_without_a_checkout_it_says_what_to_do() -> None:
    command = [sys.executable, str(ROOT / "tools" / "compat_risingwave.py")]
    done = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "RISINGWAVE=DIR" in done.stdout) == (2, True)
