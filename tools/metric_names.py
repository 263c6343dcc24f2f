"""Names of metrics, found where the code declares them: in the modules about metrics, and in those that write families of them.

For the site's reference of metrics (`site.py`) and for the dashboards (`dashboards.py`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "magnetar"

_METRIC = re.compile(r"(pulsar|bookie|bookkeeper|magnetar|autorecovery|zookeeper)_[A-Za-z0-9_]*[A-Za-z0-9]")

Group = tuple[str, list[str]]
"""What a declaration says about itself, and its metrics, sorted."""


def declarations() -> Iterator[tuple[str, str, list[Group]]]:
    """(module, its docstring, its groups), for every module that declares any."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "metric" not in path.as_posix() and "families(" not in text:
            continue
        tree = ast.parse(text)
        groups = [(_about(node), sorted(_names_in(node))) for node in tree.body]
        groups = [(about, names) for about, names in groups if names]
        if groups:
            yield path.relative_to(SOURCE).with_suffix("").as_posix(), ast.get_docstring(tree) or "", groups


def by_module() -> dict[str, set[str]]:
    """Names by module."""
    return {module: {name for _, names in groups for name in names} for module, _, groups in declarations()}


def _about(node: ast.stmt) -> str:
    documented = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return (ast.get_docstring(node) or "") if documented else ""  # type: ignore[arg-type]


def _names_in(node: ast.AST) -> set[str]:
    """Names of metrics among the strings below a statement; `*` stands for the parts that are computed."""
    found = set()
    parts = {id(value) for joined in ast.walk(node) if isinstance(joined, ast.JoinedStr) for value in joined.values}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and id(inner) not in parts:
            found |= {inner.value} if _METRIC.fullmatch(inner.value) else set()
        elif isinstance(inner, ast.JoinedStr):
            pieces = [str(value.value) if isinstance(value, ast.Constant) else "*" for value in inner.values]
            name = "".join(pieces).split("*{", maxsplit=1)[0]
            found |= {name} if _METRIC.match(name) and re.fullmatch(r"[\w*]+", name) else set()
    return found
