#!/usr/bin/env python3
"""Hold the code to sizes that fit one reading, as a ratchet: what is listed in tools/tidy.txt may shrink, never grow; nothing new gets in.

  tidy.py             print violations and exit 1 when there are any
  tidy.py --tighten   lower the listed numbers to today's and drop entries that are no longer needed

Rules: a file has at most FILE_LINES lines, a function FUNCTION_LINES; a module with content says in its docstring what it owns;
words that mark unfinished work stay out of src.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tools" / "tidy.txt"
FILE_LINES = {"src": 600, "tools": 600, "bench": 600, "tests": 600}
FUNCTION_LINES = 70
BANNED = re.compile("|".join(rf"\b{word}\b" for word in ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")))


def main() -> int:
    files = [path for folder in FILE_LINES for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.name]
    sizes: dict[str, tuple[int, int]] = {}
    problems: list[str] = []
    for path in files:
        name = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        sizes.update(measure(name, text))
        problems += read(name, text)
    listed = read_list()
    problems += [
        f"{name}: {size} lines, at most {listed.get(name, limit)} allowed; split it by what it does"
        for name, (size, limit) in sizes.items()
        if size > listed.get(name, limit)
    ]
    if "--tighten" in sys.argv[1:]:
        write_list({name: min(sizes[name][0], size) for name, size in listed.items() if over(sizes, name)})
    else:
        problems += [
            f"{LIST.name}: {name} needs no entry any more; run tools/tidy.py --tighten"
            for name in listed
            if not over(sizes, name)
        ]
    print("\n".join(problems) or f"tidy: {len(files)} files")
    return 1 if problems else 0


def over(sizes: dict[str, tuple[int, int]], name: str) -> bool:
    """Whether a listed name still exists and is still above the limit that holds for everybody."""
    size, limit = sizes.get(name, (0, 0))
    return size > limit


def measure(name: str, text: str) -> dict[str, tuple[int, int]]:
    """Size and limit of a file and of each of its functions, called `path::function` (methods with their class)."""
    sizes = {name: (text.count("\n"), FILE_LINES[name.split("/")[0]])}
    for function, lines in functions(ast.parse(text), ""):
        sizes[f"{name}::{function}"] = (lines, FUNCTION_LINES)
    return sizes


def functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    """Qualified name and number of lines of every function below `node`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            assert child.end_lineno is not None
            yield prefix + child.name, child.end_lineno - child.lineno + 1
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from functions(child, f"{prefix}{child.name}.")


def read(name: str, text: str) -> list[str]:
    """What a reader of one file would object to."""
    problems = []
    if name.startswith("src/"):
        for number, line in enumerate(text.splitlines(), 1):
            if found := BANNED.search(line):
                problems.append(
                    f"{name}:{number}: {found[0]} marks unfinished work; finish it or write it into an issue"
                )
    if text.strip() and not name.startswith("tests/") and ast.get_docstring(ast.parse(text)) is None:
        problems.append(f"{name}:1: the module docstring is missing; say what it owns")
    return problems


def read_list() -> dict[str, int]:
    lines = LIST.read_text(encoding="utf-8").splitlines() if LIST.exists() else []
    return {
        name: int(size) for name, size in (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    }


def write_list(listed: dict[str, int]) -> None:
    head = "# Files and functions above the limit of tools/tidy.py, with the size they may not exceed. Never add, only remove.\n"
    LIST.write_text(head + "".join(f"{name} {size}\n" for name, size in sorted(listed.items())), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
