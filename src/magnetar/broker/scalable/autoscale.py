"""Whether a scalable topic should have more segments, or fewer: a pure decision with its reasons.

One change at a time. First there must be a segment for each consumer of a stream subscription; then a segment above a threshold is
split; then two neighbours that have long been below all thresholds are merged. Rates are per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from magnetar.broker.scalable.layout import Segment, SegmentLayout
from magnetar.broker.settings.scalable import ScalableTopicSettings


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages and bytes per second, in and out; or thresholds of them."""

    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0

    def over(self, thresholds: Rates) -> tuple[float, str]:
        """How far the rate that is highest for its threshold is above it (1: at the threshold), and its name."""
        return max(
            (getattr(self, each.name) / getattr(thresholds, each.name), each.name.replace("_", " "))
            for each in fields(self)
        )

    def __add__(self, other: Rates) -> Rates:
        return Rates(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True)
class ScalePolicy:
    """`max_depth`: merges that a segment may descend from."""

    enabled: bool = True
    max_segments: int = 64
    min_segments: int = 1
    max_depth: int = 10
    split_cooldown_s: float = 60
    merge_cooldown_s: float = 300
    merge_window_s: float = 300
    split: Rates = Rates(10_000, 50_000_000, 50_000, 250_000_000)
    merge: Rates = Rates(1_000, 5_000_000, 5_000, 25_000_000)

    def problem(self) -> str:
        """Why this is not a policy; empty if it is one."""
        if not 1 <= self.min_segments <= self.max_segments:
            return "1 <= minSegments <= maxSegments must hold"
        if self.max_depth < 0 or min(self.split_cooldown_s, self.merge_cooldown_s, self.merge_window_s) < 0:
            return "maxDagDepth and times must not be negative"
        for each in fields(Rates):
            if not getattr(self.split, each.name) > getattr(self.merge, each.name) > 0:
                return f"the split threshold of {each.name.replace('_', ' ')} must be above the merge threshold, and that above 0"
        return ""


def broker_policy(settings: ScalableTopicSettings) -> ScalePolicy:
    """What holds where a topic says nothing itself."""
    return ScalePolicy(
        enabled=settings.scalable_auto_scale_enabled,
        max_segments=settings.scalable_max_segments,
        min_segments=settings.scalable_min_segments,
        max_depth=settings.scalable_max_dag_depth,
        split_cooldown_s=settings.scalable_split_cooldown_s,
        merge_cooldown_s=settings.scalable_merge_cooldown_s,
        merge_window_s=settings.scalable_merge_window_s,
        split=Rates(
            settings.scalable_split_messages_in,
            settings.scalable_split_bytes_in,
            settings.scalable_split_messages_out,
            settings.scalable_split_bytes_out,
        ),
        merge=Rates(
            settings.scalable_merge_messages_in,
            settings.scalable_merge_bytes_in,
            settings.scalable_merge_messages_out,
            settings.scalable_merge_bytes_out,
        ),
    )


_OVERRIDES: Mapping[str, str] = {
    "enabled": "enabled",
    "maxSegments": "max_segments",
    "minSegments": "min_segments",
    "maxDagDepth": "max_depth",
    "splitCooldownSeconds": "split_cooldown_s",
    "mergeCooldownSeconds": "merge_cooldown_s",
    "mergeWindowSeconds": "merge_window_s",
}
_RATES: Mapping[str, str] = {
    "MsgRateIn": "messages_in",
    "BytesRateIn": "bytes_in",
    "MsgRateOut": "messages_out",
    "BytesRateOut": "bytes_out",
}


def overridden(policy: ScalePolicy, document: Mapping[str, Any] | None) -> ScalePolicy:
    """The policy with what a namespace's or a topic's document (`AutoScalePolicyOverride`) says instead; what it leaves out, or sets
    to null, stays."""
    given = {name: value for name, value in (document or {}).items() if value is not None}
    values = {_OVERRIDES[name]: value for name, value in given.items() if name in _OVERRIDES}
    for kind in ("split", "merge"):
        rates = {mine: given.get(f"{kind}{name}Threshold") for name, mine in _RATES.items()}
        before = getattr(policy, kind)
        values[kind] = Rates(
            **{mine: getattr(before, mine) if value is None else float(value) for mine, value in rates.items()}
        )
    return ScalePolicy(**{**{each.name: getattr(policy, each.name) for each in fields(policy)}, **values})


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """What holds for a topic, and which level says so: `topic`, `namespace` or `broker`, by Pulsar's names of the fields."""

    values: ScalePolicy
    sources: Mapping[str, str]

    @classmethod
    def of(
        cls, broker: ScalePolicy, namespace: Mapping[str, Any] | None, topic: Mapping[str, Any] | None
    ) -> PolicyInForce:
        """Field by field, the topic's document wins over the namespace's, and that over the broker's settings."""
        found = overridden(overridden(broker, namespace), topic)
        sources = dict.fromkeys(as_document(found), "broker")
        for level, document in (("namespace", namespace), ("topic", topic)):
            given = {name for name, value in (document or {}).items() if value is not None and name in sources}
            sources.update(dict.fromkeys(given, level))
        return cls(found, sources)


def as_document(policy: ScalePolicy) -> dict[str, Any]:
    """With Pulsar's names of the fields."""
    document = {name: getattr(policy, mine) for name, mine in _OVERRIDES.items()}
    for kind in ("split", "merge"):
        for name, mine in _RATES.items():
            document[f"{kind}{name}Threshold"] = getattr(getattr(policy, kind), mine)
    return document


@dataclass(frozen=True, slots=True)
class SegmentLoad:
    """`quiet_s`: for how long all rates have been below the merge thresholds."""

    rates: Rates
    quiet_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """Split the one segment, merge the two, or do nothing. `blocked`: Pulsar's word for what stands in the way of a wanted change."""

    segment_ids: tuple[int, ...]
    reason: str
    blocked: str = ""


def decide(
    layout: SegmentLayout, loads: Mapping[int, SegmentLoad], consumers: int, policy: ScalePolicy, now_ms: int
) -> Decision:
    """`loads` of active segments, as far as they are known: none counts as idle and is never merged. `consumers`: those of the stream
    subscription that has most of them."""
    if not policy.enabled:
        return Decision((), "auto-scaling is switched off")
    problem = policy.problem()
    if problem:
        return Decision((), f"the policy is not valid: {problem}", "invalid_policy")
    wanted = _wanted_split(layout, loads, consumers, policy)
    if wanted is not None:
        return _split(layout, *wanted, policy, now_ms)
    return _merge(layout, loads, consumers, policy, now_ms)


def _wanted_split(
    layout: SegmentLayout, loads: Mapping[int, SegmentLoad], consumers: int, policy: ScalePolicy
) -> tuple[Segment, str] | None:
    active = layout.active
    if consumers > len(active):
        busiest = min(active, key=lambda each: (-_rates(loads, each).messages_in, each.id))
        return (
            busiest,
            f"a subscription has {consumers} consumers for {len(active)} segments; {busiest.id} is the busiest",
        )
    ratio, name, segment = max(((*_rates(loads, each).over(policy.split), each) for each in active), key=_highest)
    if ratio <= 1:
        return None
    return segment, f"segment {segment.id} has {ratio:.1f} times the threshold of {name}"


def _highest(found: tuple[float, str, Segment]) -> tuple[float, int]:
    return found[0], -found[2].id


def _split(layout: SegmentLayout, segment: Segment, reason: str, policy: ScalePolicy, now_ms: int) -> Decision:
    if len(layout.active) >= policy.max_segments:
        return Decision((), f"{reason}, but maxSegments is {policy.max_segments}", "max_segments")
    if segment.start == segment.end:
        return Decision((), f"{reason}, but it covers one hash only", "unsplittable")
    left_s = _left_s(layout, 1, policy.split_cooldown_s, now_ms)
    if left_s > 0:
        return Decision((), f"{reason}, but the last split was too recent: {left_s:.0f} s to go", "cooldown")
    return Decision((segment.id,), reason)


def _merge(
    layout: SegmentLayout, loads: Mapping[int, SegmentLoad], consumers: int, policy: ScalePolicy, now_ms: int
) -> Decision:
    active = layout.active
    if len(active) <= max(policy.min_segments, consumers):
        return Decision((), "no segment is above a threshold, and there are not more segments than needed")
    quiet = [pair for pair in pairwise(active) if _both_quiet(pair, loads, policy)]
    if not quiet:
        return Decision((), "no segment is above a threshold, and no two neighbours have been quiet for long enough")
    shallow = [pair for pair in quiet if max(layout.merge_depth(each.id) for each in pair) < policy.max_depth]
    if not shallow:
        return Decision((), f"two neighbours are quiet, but maxDagDepth is {policy.max_depth}", "max_dag_depth")
    left_s = _left_s(layout, 2, policy.merge_cooldown_s, now_ms)
    if left_s > 0:
        return Decision(
            (), f"two neighbours are quiet, but the last merge was too recent: {left_s:.0f} s to go", "cooldown"
        )
    low, high = min(shallow, key=lambda pair: (_sum(pair, loads).over(policy.split)[0], pair[0].start))
    return Decision(
        (low.id, high.id),
        f"segments {low.id} and {high.id} have been below all thresholds for {policy.merge_window_s:.0f} s",
    )


def _both_quiet(pair: tuple[Segment, Segment], loads: Mapping[int, SegmentLoad], policy: ScalePolicy) -> bool:
    known = [loads[each.id] for each in pair if each.id in loads]
    return (
        len(known) == 2
        and all(each.quiet_s >= policy.merge_window_s for each in known)
        and _sum(pair, loads).over(policy.split)[0] <= 1
    )


def _sum(pair: tuple[Segment, Segment], loads: Mapping[int, SegmentLoad]) -> Rates:
    return _rates(loads, pair[0]) + _rates(loads, pair[1])


def _rates(loads: Mapping[int, SegmentLoad], segment: Segment) -> Rates:
    load = loads.get(segment.id)
    return Rates() if load is None else load.rates


def _left_s(layout: SegmentLayout, parents: int, cooldown_s: float, now_ms: int) -> float:
    """Until the next change that gives segments so many parents (2: or more). Those made by hand count as well."""
    made = [each.created_ms for each in layout.segments.values() if min(len(each.parents), 2) == parents]
    return max(made) / 1000 + cooldown_s - now_ms / 1000 if made else 0.0
