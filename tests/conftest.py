"""What holds for every test: those marked `long` run only when asked for, and what workers of pytest-xdist have to know.

`make test` says `-n auto`: `pytest_xdist_auto_num_workers` says how many workers that is, `tests/support/lanes` what each of them runs.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.lanes import ALONE, SPARK, Lanes, file_of

WORKERS_MORE_THAN_CORES = 2
"""Tests with processes of their own wait for two thirds of their time."""
WORKERS_MAX = 8
"""More would only wait for Spark's files."""
FILES_OF_A_NARROW_RUN = 12
"""Up to so many files take less time than workers need to start and to collect."""

# How long an example takes is the machine's affair: other tests run beside it.
settings.register_profile(
    "unhurried", parent=settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")

# Spark's JVMs live for seconds here: without the second compiler and parallel collectors they take half the CPU time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

os.environ.setdefault("MAGNETAR_CLASS_ARCHIVE", str(Path(sys.prefix) / "cache"))
"""Shared by all tests, whatever home they have: half of what starting Spark takes."""

_kinds = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-long", action="store_true", help="run the tests that take minutes as well")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--run-long"):
        skip = pytest.mark.skip(reason="takes minutes; --run-long runs it")
        for item in items:
            if "long" in item.keywords:
                item.add_marker(skip)
    given: dict[str, Any] = getattr(config, "workerinput", {})
    if given.get("workerid") == "gw0":
        kinds = {
            ALONE: [item.nodeid for item in items if ALONE in item.keywords],
            SPARK: [item.nodeid for item in items if SPARK in getattr(item, "fixturenames", ())],
        }
        Path(given["kinds"]).write_text(json.dumps(kinds))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """None for a narrow run: all of it in this process, as without `-n`. Workers can neither show output at once nor start a debugger."""
    option = config.option
    narrow = option.keyword or option.markexpr or option.collectonly or option.capture == "no" or option.lf
    if narrow or sum(len(files_in(word)) for word in config.args) <= FILES_OF_A_NARROW_RUN:
        return 0
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores + WORKERS_MORE_THAN_CORES, WORKERS_MAX)


def files_in(word: str) -> list[Path]:
    """Test files that an argument of the command line names."""
    path = Path(file_of(word))
    return list(path.rglob("test_*.py")) if path.is_dir() else [path]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a worker where to write what kinds of tests there are."""
    stash = node.config.stash
    if _kinds not in stash:
        stash[_kinds] = Path(tempfile.mkdtemp(prefix="magnetar-tests-")) / "kinds.json"
    node.workerinput["kinds"] = str(stash[_kinds])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config) -> Lanes | None:
    """For plain `-n`; with a `--dist` of one's own that holds."""
    if config.option.dist != "load":
        return None

    def differ(node: Any, text: str) -> None:
        report = pytest.CollectReport(nodeid=node.gateway.id, outcome="failed", longrepr=text, result=[])
        config.hook.pytest_collectreport(report=report)

    return Lanes(len(config.option.tx), lambda: json.loads(config.stash[_kinds].read_text()), differ)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _kinds in config.stash:
        shutil.rmtree(config.stash[_kinds].parent, ignore_errors=True)
