"""The fenced blocks of a document, and a program that runs them in order as a reader would paste them.

`python -m tests.docs.blocks FILE [--run-long]` runs those of one document in the current directory: shell blocks in one bash, Python
blocks in one interpreter, each with what the blocks before have left. A block with `title="NAME"` is written to the file NAME instead.
A block without a title in SQL is read by the pipelines' parser. HTML comments in front of a block change that:

    <!-- not run (CATEGORY): REASON -->   is left out; CATEGORY is one of `CATEGORIES`
    <!-- long: REASON -->                 runs with --run-long only
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

RUNNABLE = ("sh", "python", "sql")
CATEGORIES = {
    "covered": "the reason begins with the document or test, as a path of the repository, that runs the same",
    "install": "installs packages",
    "machines": "needs more machines than one, or paths of a production machine",
    "minutes": "takes more minutes than a test may",
    "placeholders": "names what the reader has to put in",
    "third party": "needs software that CI has not",
}
"""Why a block may be left out."""
BLOCK = re.compile(
    r"(?:^<!-- (not run|long)(?: \(([a-z ]+)\))?: ([^\n]+) -->\n+)?^( *)```(\w*)([^\n]*)\n(.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
SECONDS_MAX = 300


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `mark` is `not run`, `long` or empty; `category` says why it is not run; `title` is a file's name or empty."""

    line: int
    language: str
    title: str
    text: str
    mark: str
    category: str
    reason: str


def blocks_of(text: str) -> list[Block]:
    """All fenced blocks of a Markdown text."""
    return list(_blocks(text))


def _blocks(text: str) -> Iterator[Block]:
    for found in BLOCK.finditer(text):
        mark, category, reason, indent, language, about, body = found.groups()
        title = re.search(r'title="([^"]+)"', about)
        lines = [line.removeprefix(indent) for line in body.splitlines()]
        number = text.count("\n", 0, found.start(4)) + 1
        name = title[1] if title else ""
        yield Block(number, language, name, "\n".join(lines) + "\n", mark or "", category or "", reason or "")


def runnable(text: str, *, long: bool) -> list[Block]:
    """The blocks that a run executes."""
    left_out = ("not run",) if long else ("not run", "long")
    return [
        block for block in blocks_of(text) if (block.language in RUNNABLE or block.title) and block.mark not in left_out
    ]


class Reader:
    """Somebody who pastes block after block."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {"__name__": "__main__"}
        self.shell = subprocess.Popen(["bash", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def paste(self, block: Block, place: str) -> None:
        """Run one block; raises what it raises."""
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            self.in_shell(block.text)
        elif block.language == "sql":
            check_sql(block.text)
        else:
            exec(compile(block.text, place, "exec"), self.names)

    def in_shell(self, text: str) -> None:
        """Run lines in the one bash. Raises RuntimeError when a line failed."""
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        end = f"end-{os.urandom(8).hex()}"
        failed = f"trap 'printf \"\\n%s %s\\n\" {end} $?; trap - ERR; exit' ERR\n"
        print(
            f"{failed}{{\n{text}}} </dev/null\ntrap - ERR\nprintf '\\n%s 0\\n' {end}", file=self.shell.stdin, flush=True
        )
        for line in self.shell.stdout:
            if line.startswith(end):
                status = line.split()[1]
                break
            print(line, end="", flush=True)
        else:
            status = "of the shell, which ended"
        if status != "0":
            raise RuntimeError(f"exit code {status} in:\n{text}")

    def close(self) -> None:
        """End the shell and what it has left in the background."""
        assert self.shell.stdin is not None
        with suppress(BrokenPipeError):  # a block that failed has ended the shell
            print("trap - ERR; kill $(jobs -p) 2>/dev/null; wait; exit 0", file=self.shell.stdin, flush=True)
        try:
            self.shell.wait(30)
        finally:
            self.shell.kill()


def check_sql(text: str) -> None:
    """Read statements as a pipeline would. Raises what it raises."""
    from magnetar.pipeline.sql.parser import parse

    parse(text)


def main(path: Path, *, long: bool) -> None:
    """Run all blocks of one document in the current directory."""
    reader = Reader()
    try:
        for block in runnable(path.read_text(encoding="utf-8"), long=long):
            print(f"--- {path.name}:{block.line}", flush=True)
            reader.paste(block, f"{path}:{block.line}")
    finally:
        reader.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), long="--run-long" in sys.argv)
