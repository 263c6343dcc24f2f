"""Promises, each by its number in docs/explanation/reliability.md, held against a history. Pure: a written history can be checked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from bench.faults.history import Event

SHOWN_MAX = 10
ENDLESS = float("inf")
"""When a call ends that nobody knows the end of."""

Problems = list[str]


def of(events: list[Event], kind: str, f: str) -> Iterable[Event]:
    return (event for event in events if event["type"] == kind and event["f"] == f)


def last_read(events: list[Event]) -> Event:
    return list(of(events, "ok", "read"))[-1]


def check_set(events: list[Event], once: bool = False) -> Problems:
    """P1, P2, and with `once` P3."""
    read = last_read(events)
    stored: list[str] = read["value"]
    found, problems = Counter(stored), []
    sent = {event["value"] for event in of(events, "invoke", "add")}
    content = dict(zip(map(tuple, read.get("places", [])), stored, strict=False))
    for event in of(events, "ok", "add"):
        value, place = event["value"], event.get("place")
        if value not in found:
            problems.append(f"P1 {value} has a receipt for {place} and is not there")
        elif place is not None and content and content.get(tuple(place)) != value:
            problems.append(f"P1 {value} has a receipt for {place}, where {content.get(tuple(place))} is")
    problems += [f"P1 {value} is there, and nobody sent it" for value in found if value not in sent]
    problems += out_of_order(stored)
    if once:
        problems += [f"P3 {value} is stored {count} times" for value, count in found.items() if count > 1]
    return problems


def out_of_order(stored: list[str]) -> Problems:
    newest: dict[str, int] = {}
    problems, seen = [], set()
    for value in stored:
        if value in seen:
            continue
        seen.add(value)
        name, _, number = value.partition(":")
        if int(number) < newest.get(name, -1):
            problems.append(f"P2 {value} is stored behind {name}:{newest[name]}")
        newest[name] = max(newest.get(name, -1), int(number))
    return problems


def check_key_shared(events: list[Event]) -> Problems:
    """P4, and P6: everything reaches the subscription."""
    problems: Problems = []
    held: dict[str, dict[str, dict[str, int]]] = {}
    newest: dict[str, int] = {}
    delivered: set[str] = set()
    for event in events:
        who, epoch = event["process"], event.get("epoch")
        if event["f"] == "deliver":
            text, key, *_ = event["value"]
            for other, texts in held.setdefault(key, {}).items():
                both = [each for each, since in texts.items() if since == epoch]
                if other != who and both:
                    problems.append(f"P4 {text} of key {key} came to {who} while {other} holds {both[:3]}")
            held[key].setdefault(who, {})[text] = epoch
            number = int(text.partition(":")[2])
            if text not in delivered and number < newest.get(key, -1):
                problems.append(f"P4 {text} of key {key} came for the first time behind number {newest[key]}")
            delivered.add(text)
            newest[key] = max(newest.get(key, -1), number)
        elif event["f"] == "ack" and event["type"] == "invoke":
            for by_consumer in held.values():
                by_consumer.get(who, {}).pop(event["value"], None)
        elif event["f"] == "left":
            for by_consumer in held.values():
                by_consumer.pop(who, None)
        elif event["f"] == "rest":
            delivered |= {text for text, _ in event["value"]}
    stored = set(last_read(events)["value"])
    problems += [f"P6 {text} never came" for text in sorted(stored - delivered)]
    return problems


def check_acks(events: list[Event]) -> Problems:
    """P5 and P6, after a last restart."""
    problems: Problems = []
    confirmed: set[tuple[int, int]] = set()
    asked: set[tuple[int, int]] = set()
    for event in events:
        if event["f"] == "ack":
            place = tuple(event["place"])
            asked.add(place)
            if event["type"] == "ok":
                confirmed.add(place)
        elif event["f"] == "deliver" and tuple(event["place"]) in confirmed:
            problems.append(f"P5 {event['value']} at {event['place']} came again, its acknowledgement was confirmed")
        elif event["f"] == "rest":
            problems += [
                f"P5 {text} at {place} came again at the end, its acknowledgement was confirmed"
                for text, place in event["value"]
                if tuple(place) in confirmed
            ]
    read = last_read(events)
    left = {tuple(place) for _, place in list(of(events, "ok", "rest"))[-1]["value"]}
    problems += [
        f"P6 {text} at {place} was never acknowledged and does not come again"
        for text, place in zip(read["value"], read["places"], strict=True)
        if tuple(place) not in asked | left
    ]
    return problems + check_set(events)


def check_geo(events: list[Event]) -> Problems:
    """P1 and P2 in both clusters, no message goes round in a loop, and P6: no failover passes over what was not acknowledged."""
    problems: Problems = []
    sends = Counter(event["value"] for event in events if event["f"] in ("add", "again") and event["type"] != "ok")
    asked = {event["value"] for event in of(events, "invoke", "ack")}
    reads = {event["where"]: event["value"] for event in of(events, "ok", "read")}
    for where, stored in reads.items():
        found = Counter(stored)
        problems += [
            f"P1 {event['value']} has a receipt and is not in {where}"
            for event in of(events, "ok", "add")
            if event["value"] not in found
        ]
        problems += [f"{problem} in {where}" for problem in out_of_order(stored)]
        problems += [
            f"{text} is in {where} {count} times and was sent {sends[text]} times"
            for text, count in found.items()
            if count > sends[text]
        ]
    for event in of(events, "ok", "rest"):
        left, where = {text for text, _ in event["value"]}, event["where"]
        problems += [
            f"P6 {text} was never acknowledged, and {where} passes over it"
            for text in dict.fromkeys(reads[where])
            if text not in asked and text not in left
        ]
    return problems


def check_view(events: list[Event]) -> Problems:
    """Every read of the view counts nothing that was not sent and no less than a read before; the last one is what the topic holds."""
    problems: Problems = []
    sent: Counter[str] = Counter()
    counted: dict[str, int] = {}
    final: list[list[Any]] | None = None
    for event in events:
        if event["f"] in ("add", "again") and event["type"] != "ok":
            sent[event["value"].partition(":")[0]] += 1
        elif event["f"] == "view":
            for who, rows, _ in event["value"]:
                if not counted.get(who, 0) <= rows <= sent[who]:
                    problems.append(
                        f"{rows} of {who} are counted after {counted.get(who, 0)}, and {sent[who]} were sent"
                    )
            for who in counted.keys() - {who for who, *_ in event["value"]}:
                problems.append(f"{who} is missing after {counted[who]} of it were counted")
            counted |= {who: rows for who, rows, _ in event["value"]}
            final = event["value"] if event.get("final") else final
    numbers: dict[str, list[int]] = {}
    for text in last_read(events)["value"]:
        who, _, number = text.partition(":")
        numbers.setdefault(who, []).append(int(number))
    expected = sorted([who, len(each), sum(each)] for who, each in numbers.items())
    if final != expected:
        problems.append(f"the view ends with {final}, and the topic holds {expected}")
    return problems


def check_transactions(events: list[Event]) -> Problems:
    """List-append by Elle's names: G1a (aborted read), lost and torn commits, elements twice, reads that are not a prefix of later ones."""
    problems: Problems = []
    outcome: dict[int, tuple[str, int]] = {}
    by_txn: dict[int, list[tuple[int, int]]] = {}
    ends = [event for event in events if event["f"] == "txn" and event["value"] and event["value"][0][0] == "append"]
    for event in ends:
        if event["type"] != "invoke":
            by_txn[event["index"]] = [(key, element) for _, key, element in event["value"]]
            outcome |= {element: (event["type"], event["index"]) for _, _, element in event["value"]}
    reads = [event for event in of(events, "ok", "txn") if event["value"][0][0] == "r"]
    final = {event["value"][0][1]: event["value"][0][2] for event in reads if event.get("final")}
    for event in reads:
        _, key, read = event["value"][0]
        problems += [f"twice: {each} in {key}" for each, count in Counter(read).items() if count > 1]
        problems += [f"G1a: {each} of an aborted transaction in {key}" for each in read if _is(outcome, each, "fail")]
        if read != final[key][: len(read)]:
            problems.append(
                f"incompatible order: a read of {key} of {len(read)} elements is not a prefix of the last one"
            )
    for index, parts in by_txn.items():
        there = [element in final[key] for key, element in parts]
        kind = events[index]["type"]
        if kind == "ok" and not all(there):
            problems.append(f"lost: {parts} was committed, and {there} of it is there")
        if kind == "info" and any(there) and not all(there):
            problems.append(f"torn: {parts} is there in part: {there}")
    return problems


def _is(outcome: dict[int, tuple[str, int]], element: int, kind: str) -> bool:
    return outcome.get(element, ("", 0))[0] == kind


def check_pipeline(events: list[Event]) -> Problems:
    """Of each message of the source either the acknowledgement and the copy in the sink are there, or neither: as often as it is stored."""
    stored = Counter(last_read(events)["value"])
    passed = Counter(list(of(events, "ok", "passed"))[-1]["value"])
    left = Counter(text for text, _ in list(of(events, "ok", "rest"))[-1]["value"])
    problems = [
        f"lost: {event['value']} was passed on" for event in of(events, "ok", "pass") if event["value"] not in passed
    ]
    return problems + [
        f"torn: {text} is in the source {stored[text]} times, {left[text]} of them not acknowledged, "
        f"and in the sink {passed[text]} times"
        for text in sorted(stored | passed | left)
        if passed[text] + left[text] != stored[text]
    ]


def check_register(events: list[Event]) -> Problems:
    """Linearizable, as Wing and Gong search for it, with the sets of reached states as memory."""
    calls, open_calls = [], {}
    for event in events:
        if event["f"] not in ("read", "write"):
            continue
        if event["type"] == "invoke":
            open_calls[event["process"]] = event
        else:
            begun = open_calls.pop(event["process"])
            if event["type"] == "ok":
                calls.append((begun["index"], event["index"], event["f"], event["value"]))
            elif event["type"] == "info":
                calls.append((begun["index"], ENDLESS, event["f"], event["value"]))
    calls += [
        (each["index"], ENDLESS, each["f"], each["value"]) for each in open_calls.values() if each["f"] == "write"
    ]
    return linearized(sorted(calls))


State = tuple[int | None, frozenset[int]]
"""The register's value, and which of the calls that still run have had their effect."""


def linearized(calls: list[tuple[Any, Any, str, int]]) -> Problems:
    """Return by return: all states that are possible. Calls without an end may never have had an effect."""
    endless = frozenset(number for number, call in enumerate(calls) if call[1] == ENDLESS)
    moments = sorted((call[side], side, number) for number, call in enumerate(calls) for side in (0, 1))
    states: list[State] = [(None, frozenset())]
    running: set[int] = set()
    for moment, side, number in moments:
        if moment == ENDLESS:
            break
        if side == 0:
            running.add(number)
            continue
        reached = reachable(states, calls, running, endless)
        states = [(value, done - {number}) for value, done in reached if number in done]
        running.discard(number)
        if not states:
            return [f"not linearizable: {calls[number][2]} of {calls[number][3]} fits no order of what went before"]
    return []


def reachable(
    states: list[State], calls: list[tuple[Any, Any, str, int]], running: set[int], endless: frozenset[int]
) -> list[State]:
    """States after any of the running calls. Of two that differ by endless calls alone, the one that has used fewer is kept."""
    least: dict[State, list[frozenset[int]]] = {}
    work = list(states)
    while work:
        value, done = work.pop(0)
        used, others = done & endless, least.setdefault((value, done - endless), [])
        if any(each <= used for each in others):
            continue
        others[:] = [each for each in others if not used <= each] + [used]
        for each in running - done:
            _, _, f, argument = calls[each]
            if f == "write" or argument == value:
                work.append((argument, done | {each}))
    return [(value, done | used) for (value, done), sets in least.items() for used in sets]


CHECKERS: dict[str, Callable[[list[Event]], Problems]] = {
    "set": check_set,
    "dedup": lambda events: check_set(events, once=True),
    "key-shared": check_key_shared,
    "acks": check_acks,
    "register": check_register,
    "transactions": check_transactions,
    "pipeline": check_pipeline,
    "geo": check_geo,
    "view": check_view,
}
"""By workload."""
