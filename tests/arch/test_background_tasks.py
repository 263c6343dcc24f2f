"""What the failure of each background task means is decided, and the decisions stand here to be looked at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/magnetar"

FATAL = {
    # Bytes on disk: what failed may be lost, and nothing may be confirmed after it.
    ("bookkeeper/bookie/bookie.py", "journal"),
    ("bookkeeper/bookie/bookie.py", "reads"),
    ("bookkeeper/bookie/bookie.py", "flush"),
    ("bookkeeper/client/writer.py", "ensemble change of ledger {}"),
    ("managed_ledger/append_pipeline.py", "switch ledger of {}"),
    ("managed_ledger/cursor/store.py", "cursor ledger of {}"),
    ("managed_ledger/ledger.py", "trim {}"),
    ("managed_ledger/ledger_reader.py", "open ledger {}"),
    ("managed_ledger/factory.py", "open {}"),
    ("metadata/server/server.py", "pump"),
    ("metadata/server/server.py", "stop"),  # the store has lost commits
    # Whoever waits for these would wait for ever, or two brokers would serve the same.
    ("broker/transactions/coordinator.py", "end transaction {}"),
    ("broker/transactions/coordinators.py", "transaction coordinator {} is served elsewhere"),
    ("broker/bundle_moves.py", "abandon {}"),
    ("broker/bundle_moves.py", "abandon transaction coordinator {}"),
    ("broker/topics/registry.py", "unload {}"),
    ("broker/service.py", "on_failure"),  # the index of delayed messages, which is stored
}
"""What ends the process. A loop that measures, checks, decides about load or keeps house is never among them."""

LOOPS = {
    ("bookkeeper/autorecovery/service.py", "auditor"),
    ("bookkeeper/autorecovery/service.py", "copies-check"),
    ("bookkeeper/autorecovery/service.py", "worker"),
    ("bookkeeper/bookie/bookie.py", "disk"),
    ("bookkeeper/bookie/bookie.py", "garbage"),
    ("bookkeeper/client/remote_bookies.py", "free space"),
    ("bookkeeper/registration.py", "keep"),
    ("broker/load_manager/manager.py", "load decisions"),
    ("broker/load_manager/manager.py", "load reports"),
    ("broker/membership.py", "join again"),
    ("broker/scalable/controller.py", "drains of {}"),
    ("broker/scalable/controller.py", "replicated subscriptions of {}"),
    ("broker/scalable/service.py", "scalable topics"),
    ("broker/transactions/coordinator.py", "transaction timeouts {}"),
    ("broker/upkeep.py", "compaction"),
    ("broker/upkeep.py", "deduplication snapshots"),
    ("broker/upkeep.py", "expiry"),
    ("broker/upkeep.py", "inactive topics"),
    ("broker/upkeep.py", "quota"),
    ("broker/upkeep.py", "rates"),
    ("broker/upkeep.py", "retention"),
    ("broker/upkeep.py", "subscription expiry"),
    ("broker/upkeep.py", "unused topics"),
    ("metadata/election.py", "take part"),
    ("metadata/follower.py", "follow"),
    ("metadata/server/server.py", "expire"),
    ("processes/bookie.py", "damage-reports"),
    ("processes/bookie.py", "reserve"),
    ("processes/broker.py", "damage-reports"),
    ("processes/metadata_server.py", "reserve"),
    ("processes/standalone_brokers.py", "watch"),
    ("standalone.py", "copies-check"),
    ("standalone.py", "reserve"),
}
"""Supervised: they begin anew after a failure."""


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)  # type: ignore[misc]
    return str(ast.literal_eval(node)) if isinstance(node, ast.Constant) else ""


def decisions() -> Iterator[tuple[str, str, str]]:
    """File, name of the task, decision, for every place where a task of a scope is made."""
    for path in sorted(SOURCE.rglob("*.py")):
        file = str(path.relative_to(SOURCE))
        if file.startswith(("pipeline/", "testing/")):
            continue
        for call in calls(ast.parse(path.read_text())):
            method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            decided = [arg.id for arg in call.args if isinstance(arg, ast.Name) and arg.id in ("FATAL", "REPORTED")]
            passed_on = {word.arg: word.value for word in call.keywords}.get("on_failure")
            if isinstance(passed_on, ast.Name):
                yield file, "on_failure", passed_on.id
            elif method == "supervise":
                yield file, text_of(call.args[1]), "LOOP"
            elif decided:
                yield file, text_of(call.args[1]), decided[0]


def test_every_decision_is_listed() -> None:
    found = set(decisions())
    assert {(file, name) for file, name, decision in found if decision == "FATAL"} == FATAL
    assert {(file, name) for file, name, decision in found if decision == "LOOP"} == LOOPS


def test_nothing_that_goes_on_for_ever_is_merely_reported() -> None:
    """Such a loop would end with its first failure, and nobody would notice what is not done any more."""
    forever: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for function in (
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.AsyncFunctionDef)
        ):
            loops = [node for node in function.body if isinstance(node, ast.While)]
            if any(isinstance(loop.test, ast.Constant) and loop.test.value is True for loop in loops):
                forever.add(f"{path.relative_to(SOURCE)}:{function.name}")
    reported: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for call in calls(ast.parse(path.read_text())):
            if any(isinstance(arg, ast.Name) and arg.id == "REPORTED" for arg in call.args):
                work = call.args[0]
                if isinstance(work, ast.Call) and isinstance(work.func, ast.Attribute):
                    reported.add(f"{path.relative_to(SOURCE)}:{work.func.attr}")
    assert forever, "the loops are found"
    assert not forever & reported
