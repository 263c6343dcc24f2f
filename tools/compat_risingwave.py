"""`make compat-risingwave`: RisingWave's own sqllogictest files, unmodified, against a pipeline that runs, by PostgreSQL's protocol.

    RISINGWAVE=DIR make compat-risingwave                             DIR: a checkout of risingwavelabs/risingwave
    RISINGWAVE=DIR make compat-risingwave ARGS="streaming/basic.slt"  some of the files; `batch/types/*` is all below, `50` every 50th

    COMPAT_RESULTS=DIR2 RISINGWAVE=DIR make compat-risingwave         in pieces: a run that was ended goes on where it was

Fetches nothing. It takes `e2e_test/streaming` and `e2e_test/batch`. The files are run one after the other through `magnetar pipeline run
--serve` beside a `magnetar standalone`, and what a file leaves behind is dropped. A file that gathers others (GATHERED) stands for
them; files that need another system are left out and counted. What does not pass must stand in
`tests/compat/risingwave.allow` with its reason, what stands there must not pass. A run of all files writes its outcome into
docs/reference/compatibility.md.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psycopg
from psycopg.pq import ExecStatus

import compat
import sqllogictest
from magnetar.base.ports import free_ports
from magnetar.testing.server import ServerProcess
from sqllogictest import FormatError, Record

ALLOWED: Final = compat.ROOT / "tests" / "compat" / "risingwave.allow"
BEGIN, END = "<!-- written by make compat-risingwave -->", "<!-- end of what make compat-risingwave writes -->"
FOLDERS: Final = ("streaming", "batch")

GATHERED: Final = (
    "batch/local_mode.slt",
    "batch/distribution_mode.slt",
    "batch/duckdb/all.slt.part",
    "batch/over_window/main.slt.part",
    "streaming/join/main.slt",
)
"""Files that run many others, each of which stands for itself here; what they set before is set before each."""

ANCHOR: Final = "compat_anchor"
"""The table of the pipeline's file. Tables of clients are at its broker."""

READY_S_MAX: Final = 300.0
FILE_S_MAX: Final = float(os.environ.get("COMPAT_FILE_S", "300"))
"""A file that takes longer is given up: what it has not reached has failed."""
STATEMENT_TIMEOUT: Final = os.environ.get("COMPAT_STATEMENT_TIMEOUT", "30s")

KEPT: Final = os.environ.get("COMPAT_RESULTS", "")
"""A directory that keeps a file's result, so that a run that was ended goes on where it was; without it nothing is kept."""

LOG_CHARS: Final = 1500

KINDS: Final = ("SINK", "MATERIALIZED VIEW", "VIEW", "TABLE", "SOURCE", "FUNCTION")
CAUSES_SHOWN: Final = 12


@dataclass(slots=True)
class Result:
    """Of a file. `problems`: what failed, by place. `only_words`: nothing failed but the words of errors that had to come."""

    file: str
    passed: int = 0
    total: int = 0
    problems: list[str] = field(default_factory=list)
    only_words: bool = True

    @property
    def outcome(self) -> compat.Outcome:
        return compat.Outcome(self.file, "failed" if self.problems else "passed", next(iter(self.problems), ""))


def main() -> int:
    given = os.environ.get("RISINGWAVE", "")
    root = next((path for path in (Path(given) / "e2e_test", Path(given)) if (path / "streaming").is_dir()), None)
    if not given or root is None:
        print("make compat-risingwave: RISINGWAVE=DIR has to name a checkout of risingwavelabs/risingwave")
        return 2
    allowed = compat.allow_list(ALLOWED.read_text(encoding="utf-8"))
    all_files = tests(root)
    others = {name: why for name, (records, _) in all_files.items() if (why := needs_another_system(records))}
    wanted = {name: found for name, found in all_files.items() if name not in others}
    files = chosen(wanted, sys.argv[1:])
    print(f"{len(files)} files of {len(wanted)}; {len(others)} more need another system", flush=True)
    results = run(files)
    complete = len(files) == len(wanted)
    text = summary(results, others)
    print(text)
    problems = compat.judge([result.outcome for result in results], allowed, complete=complete)
    print("\n".join(problem[:300] for problem in problems))
    if complete:
        write_report(root, text, problems)
    return 1 if problems else 0


def run(files: dict[str, tuple[list[Record], str]]) -> list[Result]:
    """One after the other; those that KEPT has a result of are not run again."""
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="magnetar-compat-") as scratch, Server(Path(scratch)) as server:
        for name, (records, error) in files.items():
            began_s = time.monotonic()
            result = kept(name)
            if result is None:
                result = Result(name, problems=[error], only_words=False) if error else run_file(name, records, server)
                keep(result)
            results.append(result)
            how = "passed" if not result.problems else "words" if result.only_words else "failed"
            print(f"{how} {name} {result.passed}/{result.total} {time.monotonic() - began_s:.0f} s", flush=True)
            for problem in result.problems:
                print(f"    {problem}", flush=True)
    return results


def kept(name: str) -> Result | None:
    """Of an earlier run that was told the same directory."""
    try:
        found = json.loads(kept_at(name).read_text(encoding="utf-8")) if KEPT else None
    except FileNotFoundError:
        return None
    return None if found is None else Result(**found)


def keep(result: Result) -> None:
    if KEPT:
        path = kept_at(result.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(result), indent=1), encoding="utf-8")


def kept_at(name: str) -> Path:
    return Path(KEPT) / f"{name}.json"


# ---- The files


def tests(root: Path) -> dict[str, tuple[list[Record], str]]:
    """Each file's records, or why they cannot be read; those that a gathering file includes begin with what it sets."""
    found: dict[str, tuple[list[Record], str]] = {}

    def add(file: Path, before: Sequence[Record]) -> None:
        name = str(file.relative_to(root))
        if name not in GATHERED:
            try:
                records, error = [*before, *sqllogictest.read(file, root)], ""
            except FormatError as wrong:
                records, error = [], str(wrong)
            found.setdefault(name, (records, error))
            return
        before = list(before)
        included = False
        for part in sqllogictest.parts(file, root):
            if isinstance(part, Path):
                included = True
                add(part, before)
            elif not included:
                before.append(part)

    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.slt")):
            add(path, ())
    return dict(sorted(found.items()))


def needs_another_system(records: Sequence[Record]) -> str:
    """Why a file cannot run by this server alone, or nothing."""
    for record in records:
        if record.kind == "system":
            return "runs RisingWave's own tools or psql in a shell"
        connector = re.search(r"connector\s*=\s*'([\w-]+)'", record.sql, re.IGNORECASE)
        if connector is not None and connector[1].lower() not in ("pulsar", "magnetar"):
            return f"connector {connector[1].lower()}"
    return ""


def chosen(files: dict[str, tuple[list[Record], str]], patterns: Sequence[str]) -> dict[str, tuple[list[Record], str]]:
    """Those that a pattern names, and every Nth of all for a number N."""
    if not patterns:
        return files
    found: dict[str, tuple[list[Record], str]] = {}
    for pattern in patterns:
        names = list(files)[:: int(pattern)] if pattern.isdigit() else fnmatch.filter(files, pattern)
        if not names:
            raise SystemExit(f"make compat-risingwave: there is no file {pattern} below streaming and batch")
        found |= {name: files[name] for name in names}
    return found


# ---- A server and a pipeline whose definitions clients change


class Server:
    """`magnetar standalone` and a pipeline, which is started again, empty, when it has ended or cannot be cleaned."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._broker = ServerProcess(scratch / "data")
        self._pipeline: subprocess.Popen[bytes] | None = None
        self._number = 0
        self._dsn = ""

    def __enter__(self) -> Server:
        self._broker.start()
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._broker.stop()

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        connection = psycopg.connect(self._dsn, autocommit=True)
        connection.execute(f"SET statement_timeout = '{STATEMENT_TIMEOUT}'")
        return connection

    def clean(self) -> None:
        """Without anything of an earlier file."""
        try:
            with self.connect() as connection:
                for kind in KINDS:
                    for (name,) in connection.execute(f"SHOW {kind}S").fetchall():
                        if name != ANCHOR:
                            connection.execute(f'DROP {kind} IF EXISTS "{name}" CASCADE')
        except psycopg.Error as error:
            print(f"  the pipeline is started again: {' '.join(str(error).split())[:200]}", flush=True)
            self._stop()
            print(f"  its last words: {' '.join(self._log().split())[-LOG_CHARS:]}", flush=True)
            self._start()

    def _start(self) -> None:
        self._number += 1
        name = f"compat{self._number}"
        file = self._scratch / f"{name}.sql"
        file.write_text(f"CREATE TABLE {ANCHOR} (id INT PRIMARY KEY);\n")
        (port,) = free_ports(1)
        command = [sys.executable, "-m", "magnetar", "pipeline", "run", str(file), "--serve", str(port)]
        environment = os.environ | {"MAGNETAR_HOME": str(self._scratch / "home")}
        with (self._scratch / f"{name}.log").open("w") as log:
            self._pipeline = subprocess.Popen(
                [*command, "--service-url", self._broker.service_url, "--admin-url", self._broker.http_url],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        self._dsn = f"postgresql://root@127.0.0.1:{port}/{name}"
        end_s = time.monotonic() + READY_S_MAX
        while True:
            try:
                psycopg.connect(self._dsn).close()
                return
            except psycopg.OperationalError:
                if self._pipeline.poll() is not None or time.monotonic() > end_s:
                    raise SystemExit(self._log()[-LOG_CHARS:]) from None
            time.sleep(0.2)

    def _log(self) -> str:
        return (self._scratch / f"compat{self._number}.log").read_text(errors="replace")

    def _stop(self) -> None:
        if self._pipeline is not None and self._pipeline.poll() is None:
            self._pipeline.terminate()
            try:
                self._pipeline.wait(60)
            except subprocess.TimeoutExpired:
                self._pipeline.kill()
                self._pipeline.wait()


# ---- One file


class Connections:
    """By the names that a file gives them; opened again when they are broken."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._open: dict[str, psycopg.Connection[tuple[object, ...]]] = {}

    def run(self, name: str, sql: str) -> tuple[list[list[str]], str | None, int | None]:
        """Rows, the error, and how many rows were changed."""
        connection = self._open.get(name)
        try:
            if connection is None or connection.closed:
                connection = self._open[name] = self._server.connect()
        except psycopg.Error as error:
            return [], str(error).strip(), None
        result = connection.pgconn.exec_(sql.encode())
        if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY):
            values = [
                [sqllogictest.shown(result.get_value(row, column)) for column in range(result.nfields)]
                for row in range(result.ntuples)
            ]
            return values, None, result.command_tuples
        if result.status != ExecStatus.FATAL_ERROR:
            connection.close()  # a COPY, which nobody goes on with
        return [], result.error_message.decode(errors="replace").strip() or "no answer", None

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()


@contextmanager
def connections(server: Server) -> Iterator[Connections]:
    found = Connections(server)
    try:
        yield found
    finally:
        found.close()


def run_file(name: str, records: Sequence[Record], server: Server) -> Result:
    """All records, also behind one that failed."""
    server.clean()
    result = Result(name)
    variables: dict[str, str] = {}
    substitutes = False
    end_s = time.monotonic() + FILE_S_MAX
    with connections(server) as opened:
        for record in records:
            match record.kind:
                case "halt":
                    break
                case "sleep":
                    time.sleep(record.pause_s)
                    continue
                case "substitution":
                    substitutes = record.sql == "on"
                    continue
            result.total += 1
            if time.monotonic() > end_s:
                why: str | None = f"given up after {FILE_S_MAX:g} s"
            else:
                sql = filled(record.sql, variables) if substitutes else record.sql
                why = attempted(record, sql, opened, variables)
            if why is None:
                result.passed += 1
            else:
                result.problems.append(f"{record.where}: {' '.join(record.sql.split())[:90]}: {plain(why)}")
                result.only_words = result.only_words and why.startswith(OTHER_WORDS)
    return result


OTHER_WORDS: Final = "refused in other words: "


def attempted(record: Record, sql: str, opened: Connections, variables: dict[str, str]) -> str | None:
    """Why a record fails, as often as it may be tried, or None."""
    why = None
    for attempt in range(record.times):
        if attempt:
            time.sleep(record.pause_s)
        rows, error, count = opened.run(record.connection, sql)
        why = judged(record, rows, error, count)
        if why is None:
            break
    if why is None and record.kind == "let":
        variables |= dict(zip(record.names, rows[0] if rows else (), strict=False))
    return why


def judged(record: Record, rows: Sequence[Sequence[str]], error: str | None, count: int | None) -> str | None:
    if record.error is not None:
        if error is None:
            return "accepted, where an error is expected"
        return None if sqllogictest.is_expected(record, error) else f"{OTHER_WORDS}{error}"
    if error is not None:
        return error
    if record.count is not None and record.count != count:
        return f"{count} rows changed instead of {record.count}"
    return sqllogictest.difference(record, rows)


def filled(sql: str, variables: dict[str, str]) -> str:
    """With `$name` and `${name}` replaced where they are known."""
    return re.sub(r"\$\{?(\w+)\}?", lambda found: variables.get(found[1], found[0]), sql)


def plain(text: str) -> str:
    """On one line, without what only PostgreSQL's clients add."""
    return " ".join(text.removeprefix("ERROR:").split())[:300]


# ---- The outcome


def cause(problem: str) -> str:
    """The kind of a failure: its message without the names and numbers of the one statement."""
    message = problem.rpartition(": ERROR:")[2] if ": ERROR:" in problem else problem.split(": ", 2)[-1]
    message = re.sub(r"\bHINT:.*|\bLINE \d+:.*", "", message)
    message = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "...", message)
    return re.sub(r"\d+(\.\d+)?", "N", " ".join(message.split()))[:100].strip()


def summary(results: Sequence[Result], others: dict[str, str]) -> str:
    whole = [result for result in results if not result.problems]
    words = [result for result in results if result.problems and result.only_words]
    passed, total = sum(result.passed for result in results), sum(result.total for result in results)
    lines = [
        f"Of {len(results)} files {len(whole)} pass as a whole ({share(len(whole), len(results))}), and {len(words)} more but for the "
        f"words of errors; of {total} statements {passed} pass ({share(passed, total)}). {len(others)} files need another system.",
        "",
        "| folder | files | pass as a whole | but for the words of errors | statements | pass |",
        "|---|---|---|---|---|---|",
    ]
    for folder in sorted({folder_of(result.file) for result in results}):
        inside = [result for result in results if folder_of(result.file) == folder]
        counts = [
            len(inside),
            sum(not result.problems for result in inside),
            sum(bool(result.problems) and result.only_words for result in inside),
            sum(result.total for result in inside),
            sum(result.passed for result in inside),
        ]
        lines.append(f"| `{folder}` | {' | '.join(map(str, counts))} |")
    causes = Counter(cause(problem) for result in results for problem in result.problems[:1])
    lines += ["", "What the files that do not pass fail with first:", ""]
    lines += [f"- {count}: {why}" for why, count in causes.most_common(CAUSES_SHOWN)]
    return "\n".join(lines)


def folder_of(file: str) -> str:
    parts = file.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "none"


def write_report(root: Path, text: str, problems: Sequence[str]) -> None:
    intro = f"RisingWave {compat.commit_of(root)}, on {datetime.now(UTC):%Y-%m-%d}."
    parts = [BEGIN, intro, text, *(["\n".join(f"- {problem[:200]}" for problem in problems)] if problems else []), END]
    whole = compat.REPORT.read_text(encoding="utf-8")
    before, after = whole.partition(BEGIN)[0], whole.partition(END)[2]
    compat.REPORT.write_text(before + "\n\n".join(parts) + after, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
