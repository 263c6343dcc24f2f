"""Runs one file of the official client's suite with unittest, as the suite itself does, and writes down each result at once.

    python tools/compat_runner.py FILE RESULTS [TEST ...]

RESULTS gets a JSON line when a test begins and one when it ends: what is missing after the process died was under way. With tests
(`Class::name`) only these are run; without, all.
"""

from __future__ import annotations

import json
import signal
import sys
import unittest
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

TEST_S_MAX = 120
"""A test that takes longer has failed."""


class Result(unittest.TestResult):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def _write(self, test: unittest.TestCase, outcome: str, why: str = "") -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"test": name_of(test), "outcome": outcome, "why": why}) + "\n")

    def startTest(self, test: unittest.TestCase) -> None:
        self._write(test, "started")
        signal.alarm(TEST_S_MAX)
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:
        signal.alarm(0)
        super().stopTest(test)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._write(test, "passed")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._write(test, "failed", last_line(err))

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._write(test, "failed", last_line(err))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._write(test, "skipped", reason)


def name_of(test: unittest.TestCase) -> str:
    """`Class::name`; what is not a test (a class that could not be set up) by its text."""
    method = getattr(test, "_testMethodName", "")
    return f"{type(test).__name__}::{method}" if method else str(test)


def last_line(err: Any) -> str:
    return f"{err[0].__name__}: {err[1]}".splitlines()[0][:300]


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests_of(item)
        else:
            yield item


def too_slow(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"took longer than {TEST_S_MAX} s")


def main() -> None:
    file, results, *wanted = sys.argv[1:]
    sys.path.insert(0, str(Path(file).parent))
    signal.signal(signal.SIGALRM, too_slow)
    suite = unittest.defaultTestLoader.loadTestsFromModule(import_module(Path(file).stem))
    chosen = [test for test in tests_of(suite) if not wanted or name_of(test) in wanted]
    unittest.TestSuite(chosen).run(Result(Path(results)))


if __name__ == "__main__":
    main()
