"""Every reason code has words, and whoever gives a reason gives the facts that the words need."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import click

import magnetar.broker
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.explain.answer import stored_metadata
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
from magnetar.broker.explain.topic import REFUSALS, refusals
from magnetar.broker.reasons import Code, Named, because
from magnetar.broker.refused_clients import PER_TOPIC_MAX, REMEMBERED_MS, TOPICS_MAX, RecentRefusals, Refused
from magnetar.cli.main import cli
from magnetar.managed_ledger.entry import Entry

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
    by_table = {*REFUSALS.values(), Code.CLIENT_REFUSED}
    assert {code for _, code, _ in given()} | {code.name for code in by_table} == {code.name for code in Code}


def test_whoever_gives_a_reason_gives_its_facts() -> None:
    for place, name, names in given():
        code = Code[name]
        assert names <= facts_of(code), f"{place}: {names - facts_of(code)} are not declared"
        assert facts_of(code) - names <= optional_in(code) | {"keys"}, f"{place}: {facts_of(code) - names} are missing"


def test_a_refused_client_is_named_with_its_error() -> None:
    for slug, code in [*REFUSALS.items(), ("another", Code.CLIENT_REFUSED)]:
        refused = Refused("consumer", "c1", "sub", "/127.0.0.1:1", slug, "it does not fit", 1, 2)
        (reason,) = refusals([refused])
        assert reason.code is code
        assert set(reason.facts) == facts_of(code)
        assert "consumer c1" in text_of(reason)
        assert text_of(reason).endswith("it does not fit.")


def test_refusals_are_bounded_and_those_of_one_client_are_one() -> None:
    kept = RecentRefusals()
    for number in range(TOPICS_MAX + 5):
        kept.remember(f"t{number}", "producer", "p", "", "a", NotAllowedError("no."), number)
    assert kept.count() == TOPICS_MAX
    assert kept.of("t0", TOPICS_MAX) == []
    for number in range(PER_TOPIC_MAX + 5):
        kept.remember("busy", "producer", f"p{number}", "", "a", NotAllowedError("no."), 1000)
    for moment in (2000, 3000):
        kept.remember("busy", "producer", "again" * 1000, "", "a", NotAllowedError("x" * 10_000), moment)
    found = kept.of("busy", 4000)
    assert len(found) == PER_TOPIC_MAX
    assert (found[0].times, found[0].first_ms, found[0].last_ms) == (2, 2000, 3000)
    assert len(found[0].name) + len(found[0].problem) < 1000
    assert kept.of("busy", 3000 + REMEMBERED_MS) == []


def test_texts_are_sentences() -> None:
    for code, meaning in MEANINGS.items():
        assert meaning.text.rstrip("]").endswith("."), code
        assert meaning.change.endswith("."), code


def test_commands_that_texts_name_exist() -> None:
    for code, meaning in MEANINGS.items():
        for words in re.findall(r"`magnetar ([^`]*)`", meaning.text + meaning.change):
            node: click.Command = cli
            context = click.Context(cli)
            for word in words.split():
                if isinstance(node, click.Group) and not word.startswith("-"):
                    found = node.get_command(context, word)
                    assert found is not None, f"{code}: `magnetar {words}` names no command"
                    node = found
                elif word.startswith("-"):
                    flags = {flag for param in node.params for flag in param.opts}
                    assert word in flags, f"{code}: `magnetar {words}`: no flag {word}"


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


def test_a_damaged_entry_has_no_metadata() -> None:
    for data in (b"", b"\x00\x00\x00\x04\xff\xff\xff\xffpayload", b"\x0e\x01" + b"\x00" * 20):
        found = stored_metadata(Entry(1, 0, data))
        assert found is None or not found.producer_name
