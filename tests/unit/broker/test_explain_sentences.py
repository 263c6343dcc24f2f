"""Every reason code has words, and whoever gives a reason gives the facts that the words need."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import magnetar.broker
from magnetar.broker.explain.sentences import (
    MEANINGS,
    change_of,
    counted,
    facts_of,
    listed,
    optional_in,
    text_of,
    verdict,
)
from magnetar.broker.reasons import Code, Named, because

SOURCE = Path(magnetar.broker.__file__).parent
CONSUMER = {"consumer", "address"}
"""The facts of `Receiver.described`."""


@cache
def given() -> list[tuple[str, str, set[str]]]:
    """Where a reason is given: place, code and names of its facts."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "because"):
                continue
            code = node.args[0]
            assert isinstance(code, ast.Attribute), f"{path}:{node.lineno}: name the code"
            names: set[str] = set()
            for word in node.keywords:
                if word.arg is None:
                    assert "described" in ast.unparse(word.value), f"{path}:{node.lineno}: name the facts"
                    names |= CONSUMER
                elif word.arg == "keys_at":
                    names.add("keys")
                elif word.arg != "since_ms":
                    names.add(word.arg)
            if len(node.args) > 2:
                names.add("keys")
            found.append((f"{path.name}:{node.lineno}", code.attr, names))
    return found


def test_every_code_has_words_and_is_given_somewhere() -> None:
    assert set(MEANINGS) == set(Code)
    assert {code for _, code, _ in given()} == {code.name for code in Code}


def test_whoever_gives_a_reason_gives_its_facts() -> None:
    for place, name, names in given():
        code = Code[name]
        assert names <= facts_of(code), f"{place}: {names - facts_of(code)} are not declared"
        assert facts_of(code) - names <= optional_in(code) | {"keys"}, f"{place}: {facts_of(code) - names} are missing"


def test_texts_are_sentences() -> None:
    for code, meaning in MEANINGS.items():
        assert meaning.text.rstrip("]").endswith("."), code
        assert meaning.change.endswith("."), code


def test_counts_and_lists() -> None:
    assert counted(1, "entry") == "1 entry"
    assert counted(2, "entry") == "2 entries"
    assert counted(0, "message") == "0 messages"
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(Named(c1=3)) == "c1 (3)"


def test_what_is_not_known_is_left_out() -> None:
    reason = because(Code.NOT_ACKNOWLEDGED, unacked=1, holders=Named())
    assert text_of(reason) == "Everything was delivered, and 1 message waits for an acknowledgement."


def test_names_of_strangers_are_no_templates() -> None:
    reason = because(Code.NO_PERMITS, consumer="{address} [x]", address="a", permits=0)
    assert "Consumer {address} [x] asks" in text_of(reason)
    assert change_of(reason)


def test_verdicts() -> None:
    reason = because(Code.NO_CONSUMERS, backlog=2)
    assert verdict("Subscription s", False, [reason]).startswith("Subscription s stands still: nobody is connected")
    assert verdict("Subscription s", True, []) == "Subscription s is moving."
    assert verdict("Subscription s", True, [reason]).startswith("Subscription s is moving, but: nobody")
