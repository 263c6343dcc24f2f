"""Every route whose work grows with topics or partitions is marked: it takes its turn and works in slices."""

from __future__ import annotations

import ast
from pathlib import Path

ROUTES = Path(__file__).parents[2] / "src/magnetar/admin/routes"

WALKS = {
    "every_persistent",
    "every_subscription",
    "every_backlog",
    "all_with_subscription",
    "with_use",
    "loaded",
    "topics_of",
    "parts",
    "subscriptions_of",
    "delete_namespace",
    "exposition",
    "exposition_json",
    "_topics",
}
"""Names whose use means: all topics of something."""

LIGHT = {("transactions.py", "slow"): "the loaded transaction coordinators, of which there are a few"}


def uses(function: ast.AsyncFunctionDef) -> set[str]:
    called = {
        node.func.id for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return called | {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}


def is_heavy(function: ast.AsyncFunctionDef) -> bool | None:
    """None for what is not a handler."""
    for decorator in function.decorator_list:
        if (
            isinstance(decorator, ast.Call)
            and isinstance(decorator.func, ast.Name)
            and decorator.func.id == "documented"
        ):
            return any(word.arg == "heavy" for word in decorator.keywords)
    return None


def test_what_goes_through_all_topics_is_heavy() -> None:
    marked, unmarked = 0, []
    for path in sorted(ROUTES.rglob("*.py")):
        for function in (
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.AsyncFunctionDef)
        ):
            heavy = is_heavy(function)
            marked += bool(heavy)
            if heavy is False and uses(function) & WALKS and (path.name, function.name) not in LIGHT:
                unmarked.append(f"{path.name}: {function.name} uses {sorted(uses(function) & WALKS)}")
    assert marked > 30
    assert not unmarked
