"""Pictures as SVG, drawn here: charts, a topic's chain of ledgers with the cursors in it, slots and bundles by their owners.

Colours are classes of the style sheet, so that a picture follows light and dark; texts are escaped by `Markup.format`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import cos, pi, sin, sqrt
from typing import Any, Final

from markupsafe import Markup

from magnetar.base.printable import one_line

PALETTE: Final = 10
"""Classes `c0` to `c9`; owners beyond that share them."""

LEDGERS_SHOWN: Final = 24
"""Newest ledgers of a chain that are drawn; the text says how many went before."""

CURSORS_SHOWN: Final = 16
RING_ARCS_MAX: Final = 4_000
TICKS_MAX: Final = 500


def sparkline(values: Sequence[float], label: str) -> Markup:
    """A line of the last values, from 0 to their maximum."""
    width, height, pad = 240, 44, 3
    top = max([*values, 0.0]) or 1.0
    count = max(len(values), 2)
    points = [
        (pad + (width - 2 * pad) * place / (count - 1), height - pad - (height - 2 * pad) * value / top)
        for place, value in enumerate([*values, *values][:count] if len(values) == 1 else values)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    area = f"{pad},{height - pad} {line} {points[-1][0]:.1f},{height - pad}" if points else ""
    text = Markup("<title>{}</title>").format(one_line(label))
    return Markup(
        f'<svg class="spark" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img">{text}'
        f'<polygon class="area" points="{area}"/><polyline class="line" points="{line}"/></svg>'
    )


def pair(left: str, right: str) -> Markup:
    """Two numbers under a third one."""
    return Markup('<span class="pair"><span>{}</span><span>{}</span></span>').format(left, right)


def meter(used: float, total: float, label: str) -> Markup:
    """How full something is. Above 80 % it warns, above 95 % it alarms."""
    share = min(1.0, used / total) if total > 0 else 0.0
    kind = "bad" if share > 0.95 else "warn" if share > 0.8 else "good"
    text = Markup("<title>{}</title>").format(one_line(label))
    return Markup(
        f'<svg class="meter" viewBox="0 0 100 6" preserveAspectRatio="none" role="img">{text}'
        f'<rect class="track" width="100" height="6"/><rect class="{kind}" width="{100 * share:.1f}" height="6"/></svg>'
    )


# ---- A chain of ledgers

_LEFT, _RIGHT, _ROW, _CHAIN = 170, 880, 26, 58


def chain(ledgers: Sequence[Mapping[str, Any]], cursors: Mapping[str, Mapping[str, Any]], last: str) -> Markup:
    """`ledgers` and `cursors` as in a topic's internalStats; `last` is its last confirmed entry. Widths grow as the root of the entries."""
    shown = list(ledgers[-LEDGERS_SHOWN:])
    if not shown:
        return Markup("")
    entries = _entries_by_ledger(shown, last)
    places = _places([entries[each["ledgerId"]] for each in shown])
    parts = [
        _box(each, entries[each["ledgerId"]], place, n == len(shown) - 1)
        for n, (each, place) in enumerate(zip(shown, places, strict=True))
    ]
    rows = sorted(cursors.items())[:CURSORS_SHOWN]
    bottom = _CHAIN + 14 + _ROW * len(rows)
    parts += [
        Markup(f'<line class="seam" x1="{start:.1f}" x2="{start:.1f}" y1="{_CHAIN}" y2="{bottom}"/>')
        for start, _ in places[1:]
    ]
    ids = [each["ledgerId"] for each in shown]
    for row, (name, cursor) in enumerate(rows):
        x = _x_of(str(cursor["markDeletePosition"]), ids, entries, places)
        parts.append(_cursor(name, cursor, x, _CHAIN + 14 + _ROW * row + _ROW // 2))
    return Markup(
        '<svg class="chain" viewBox="0 0 900 {}" role="img"><title>Ledgers, oldest first, and the subscriptions in them</title>{}</svg>'
    ).format(bottom + 6, Markup("").join(parts))


def _entries_by_ledger(ledgers: Sequence[Mapping[str, Any]], last: str) -> dict[int, int]:
    found = {int(each["ledgerId"]): max(0, int(each["entries"])) for each in ledgers}
    ledger, _, entry = last.partition(":")
    if ledger.isdigit() and entry.isdigit() and int(ledger) in found:
        found[int(ledger)] = max(found[int(ledger)], int(entry) + 1)
    return found


def _places(entries: Sequence[int]) -> list[tuple[float, float]]:
    weights = [1.2 + sqrt(count) / (sqrt(max(entries)) or 1) * 4 for count in entries]
    scale = (_RIGHT - _LEFT) / sum(weights)
    places, at = [], float(_LEFT)
    for weight in weights:
        places.append((at, at + weight * scale))
        at += weight * scale
    return places


def _box(ledger: Mapping[str, Any], entries: int, place: tuple[float, float], is_open: bool) -> Markup:
    start, end = place
    wide, middle = end - start, (start + end) / 2
    number, state = ledger["ledgerId"], ", open for writing" if is_open else ""
    box = f'x="{start + 1:.1f}" y="8" width="{max(wide - 2, 2):.1f}" height="{_CHAIN - 14}" rx="4"'
    parts = [
        Markup("<g><title>ledger {}: {} entries, {} bytes{}</title>").format(number, entries, ledger["size"], state),
        Markup(f'<rect class="ledger{" open" if is_open else ""}" {box}/>'),
    ]
    if wide > 50:
        parts.append(Markup(f'<text x="{middle:.1f}" y="27" class="id">{{}}</text>').format(number))
        parts.append(Markup(f'<text x="{middle:.1f}" y="42" class="small">{{}}</text>').format(f"{entries:,}"))
    return Markup("").join([*parts, Markup("</g>")])


def _x_of(
    position: str, ids: Sequence[int], entries: Mapping[int, int], places: Sequence[tuple[float, float]]
) -> float:
    """Behind the entry of a mark-delete position."""
    left, _, right = position.partition(":")
    ledger, entry = int(left), int(right)
    if ledger in entries:
        start, end = places[list(ids).index(ledger)]
        return start + (end - start) * min(1.0, (entry + 1) / max(1, entries[ledger]))
    later = [place for each, place in zip(ids, places, strict=True) if each > ledger]
    return later[0][0] if later else places[-1][1]


def _cursor(name: str, cursor: Mapping[str, Any], x: float, y: int) -> Markup:
    short = name if len(name) <= 22 else name[:21] + "…"
    return Markup(
        '<g><title>{}: everything up to {} is acknowledged</title><text class="who" x="4" y="{}">{}</text>'
        '<line class="rest" x1="{}" x2="{}" y1="{}" y2="{}"/><line class="acked" x1="{}" x2="{}" y1="{}" y2="{}"/>'
        '<circle class="mark" cx="{}" cy="{}" r="5"/></g>'
    ).format(
        one_line(name),
        cursor["markDeletePosition"],
        y + 4,
        one_line(short),
        f"{x:.1f}",
        _RIGHT,
        y,
        y,
        _LEFT,
        f"{x:.1f}",
        y,
        y,
        f"{x:.1f}",
        y,
    )


# ---- Owners of slots


def colour(members: Sequence[str], member: str) -> str:
    return f"c{members.index(member) % PALETTE}" if member in members else "none"


def ring(
    arcs: Sequence[tuple[int, int, str]], members: Sequence[str], draining: Sequence[int], size: int = 65536
) -> Markup:
    """Slots as a circle, clockwise from the top: (first, last, owner), ascending. Ticks outside are slots that drain."""
    parts = [
        Markup('<path class="arc {}" d="{}"><title>{}: slots {} to {}</title></path>').format(
            colour(members, owner), _arc(start / size, (end + 1) / size, 112, 142), one_line(owner), start, end
        )
        for start, end, owner in merged(arcs)[:RING_ARCS_MAX]
    ]
    parts += [
        Markup('<line class="drain" x1="{}" y1="{}" x2="{}" y2="{}"><title>slot {} drains</title></line>').format(
            *_ends(slot / size, 145, 156), slot
        )
        for slot in draining[:TICKS_MAX]
    ]
    hole = Markup('<circle class="gap" cx="160" cy="160" r="127"/>')
    return Markup(
        '<svg class="ring" viewBox="0 0 320 320" role="img"><title>Slots by consumer</title>{}{}'
        '<text x="160" y="156" class="id">{}</text><text x="160" y="176" class="small">{} ranges</text></svg>'
    ).format(hole, Markup("").join(parts), f"{size:,} slots", f"{len(merged(arcs)):,}")


def merged(arcs: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Neighbours of one owner as one stretch."""
    found: list[tuple[int, int, str]] = []
    for start, end, owner in arcs:
        if found and found[-1][2] == owner and found[-1][1] + 1 == start:
            found[-1] = (found[-1][0], end, owner)
        else:
            found.append((start, end, owner))
    return found


def _arc(start: float, end: float, inner: float, outer: float) -> str:
    if end - start >= 0.99999:
        end = start + 0.99999
    large = int(end - start > 0.5)
    (ax, ay), (bx, by) = _at(start, outer), _at(end, outer)
    (cx, cy), (dx, dy) = _at(end, inner), _at(start, inner)
    return (
        f"M{ax:.2f} {ay:.2f}A{outer} {outer} 0 {large} 1 {bx:.2f} {by:.2f}"
        f"L{cx:.2f} {cy:.2f}A{inner} {inner} 0 {large} 0 {dx:.2f} {dy:.2f}Z"
    )


def _at(turn: float, radius: float) -> tuple[float, float]:
    return 160 + radius * sin(2 * pi * turn), 160 - radius * cos(2 * pi * turn)


def _ends(turn: float, inner: float, outer: float) -> tuple[str, str, str, str]:
    (ax, ay), (bx, by) = _at(turn, inner), _at(turn, outer)
    return f"{ax:.1f}", f"{ay:.1f}", f"{bx:.1f}", f"{by:.1f}"


def bar(stretches: Sequence[tuple[int, int, str]], members: Sequence[str], size: int, label: str) -> Markup:
    """The same as a straight bar: (first, first behind it, owner)."""
    parts = [
        Markup('<rect class="{}" x="{}" y="0" width="{}" height="28"><title>{}: {}</title></rect>').format(
            colour(members, owner),
            f"{900 * start / size:.2f}",
            f"{max(900 * (end - start) / size - 0.8, 0.4):.2f}",
            one_line(owner or "nobody"),
            f"0x{start:08x} to 0x{end:08x}",
        )
        for start, end, owner in stretches
    ]
    return Markup(
        '<svg class="bar" viewBox="0 0 900 28" preserveAspectRatio="none" role="img"><title>{}</title>{}</svg>'
    ).format(one_line(label), Markup("").join(parts))


# ---- Stages of a pipeline

_BOX_WIDE, _BOX_HIGH, _GAP_X, _GAP_Y = 150, 44, 60, 16


def graph(
    nodes: Sequence[tuple[str, str, str, str]], columns: Mapping[str, int], edges: Sequence[tuple[str, str]]
) -> Markup:
    """Sources on the left, views on the right: `nodes` as (id, kind, label, number), their columns, and who reads whom."""
    places: dict[str, tuple[int, int]] = {}
    filled: dict[int, int] = {}
    for node, *_ in nodes:
        column = columns[node]
        row = filled.get(column, 0)
        filled[column] = row + 1
        places[node] = (column * (_BOX_WIDE + _GAP_X) + 2, row * (_BOX_HIGH + _GAP_Y) + 2)
    wide = (max(filled, default=0) + 1) * (_BOX_WIDE + _GAP_X) - _GAP_X + 4
    high = max(filled.values(), default=1) * (_BOX_HIGH + _GAP_Y) - _GAP_Y + 4
    lines = [Markup('<path class="edge" d="{}"/>').format(_edge(places[a], places[b])) for a, b in edges]
    boxes = [
        Markup(
            '<g class="{}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="7"/><text class="id" x="{}" y="{}">{}</text>'
            '<text class="small" x="{}" y="{}">{}</text></g>'
        ).format(
            kind, one_line(node), *places[node], _BOX_WIDE, _BOX_HIGH, places[node][0] + _BOX_WIDE // 2, places[node][1] + 19,
            _short(label), places[node][0] + _BOX_WIDE // 2, places[node][1] + 35, number,
        )
        for node, kind, label, number in nodes
    ]  # fmt: skip
    return Markup(
        '<svg class="graph" viewBox="0 0 {} {}" width="{}" role="img"><title>Sources, stages and views</title>{}{}</svg>'
    ).format(wide, high, wide, Markup("").join(lines), Markup("").join(boxes))


def _short(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= 20 else text[:19] + "…"


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    ax, ay = start[0] + _BOX_WIDE, start[1] + _BOX_HIGH // 2
    bx, by = end[0], end[1] + _BOX_HIGH // 2
    return f"M{ax} {ay}C{ax + _GAP_X // 2} {ay} {bx - _GAP_X // 2} {by} {bx} {by}"


# ---- A replicated subscription between regions


def lanes(
    here: str,
    others: Sequence[Mapping[str, Any]],
    subscription: Mapping[str, Any],
    ledgers: Sequence[Mapping[str, Any]],
    last: str,
    snapshot: str | None,
) -> Markup:
    """A lane for each region, in this region's positions: how far the subscription is there; ticks are snapshots, the last one and the
    next one that it has to pass. Without the topic's ledgers (a partition's) a region that is not as far stands half way."""
    scale = _Scale(list(ledgers[-LEDGERS_SHOWN:]), last, str(subscription["markDeletePosition"]))
    told = subscription["toldPosition"]
    rows: list[tuple[str, str | None, str]] = [(here, str(subscription["markDeletePosition"]), "here")]
    rows += [(str(each["cluster"]), told, "connected" if each["connected"] else "away") for each in others]
    parts = []
    for number, (name, position, state) in enumerate(rows):
        y = 14 + number * _ROW
        x = scale.x(position) if position else float(_LEFT)
        parts.append(
            Markup(
                '<g class="{}"><title>{}: {}, everything up to {} is acknowledged</title><text class="who" x="4" y="{}">{}</text>'
                '<line class="rest" x1="{}" x2="{}" y1="{}" y2="{}"/><line class="acked" x1="{}" x2="{}" y1="{}" y2="{}"/>'
                '<circle class="mark" cx="{}" cy="{}" r="5"/></g>'
            ).format(
                state, one_line(name), state, position or "nothing yet", y + 4, _short(name),
                f"{x:.1f}", _RIGHT, y, y, _LEFT, f"{x:.1f}", y, y, f"{x:.1f}", y,
            )
        )  # fmt: skip
    bottom = 14 + len(rows) * _ROW
    for position, what in ((snapshot, "last snapshot"), (subscription["nextSnapshotPosition"], "next snapshot")):
        if position:
            x = scale.x(str(position))
            parts.append(
                Markup('<line class="tick" x1="{}" x2="{}" y1="2" y2="{}"><title>{} at {}</title></line>').format(
                    f"{x:.1f}", f"{x:.1f}", bottom - 12, what, position
                )
            )
    return Markup(
        '<svg class="chain lanes" viewBox="0 0 {} {}" role="img"><title>The subscription in each region</title>{}</svg>'
    ).format(_RIGHT + 10, bottom, Markup("").join(parts))


class _Scale:
    """Positions to places; without ledgers everything that is behind a position lies half way to it."""

    def __init__(self, ledgers: Sequence[Mapping[str, Any]], last: str, newest: str) -> None:
        self._newest = newest
        self._ids = [int(each["ledgerId"]) for each in ledgers]
        self._entries = _entries_by_ledger(ledgers, last) if ledgers else {}
        self._places = _places([self._entries[each] for each in self._ids]) if ledgers else []

    def x(self, position: str) -> float:
        if not self._ids:
            return float(_RIGHT if position == self._newest else (_LEFT + _RIGHT) / 2)
        left, _, right = position.partition(":")
        if int(left) < self._ids[0]:
            return float(_LEFT)
        return _x_of(f"{left}:{int(right)}", self._ids, self._entries, self._places)
