"""What several clusters promise about one topic and its replicated subscriptions.

G1 to G4 are the promises of docs/explanation/geo-replication.md. Each site has a log of its own; messages have their names everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from magnetar.testing.sim.history import History
from magnetar.testing.sim.messaging.promises import (
    Holder,
    Name,
    Place,
    Promises,
    SubscriptionHistory,
    TopicHistory,
    name_of_payload,
)
from magnetar.testing.sim.world import World

ARRIVES = "G1 what is stored in one cluster is stored in every other one: in the same order, and once"
NO_LOOPS = "G2 a message comes back to no cluster that it came from"
NOT_SKIPPED = "G3 a failover skips nothing: every message with a receipt is acknowledged by somebody"
FOLLOWS = "G4 a replicated subscription is in the end as far in every cluster"


class Stored(NamedTuple):
    """An entry of a site's log. `source`: the cluster it came from, empty for this one, and its place there."""

    source: str
    place: tuple[int, int] | None
    payloads: tuple[bytes, ...]
    batched: bool


Log = Mapping[tuple[int, int], Stored]
"""By ledger and entry, in their order."""


@dataclass
class Followed:
    """One subscription in all clusters."""

    name: str
    sites: dict[str, SubscriptionHistory]
    """By site; what was delivered first, and in which order, concerns all together."""
    acknowledged: set[Name]
    """By whoever was given it, at any site."""


class GeoPromises(Promises):
    """Of one topic at several sites. `sites`: its log at each."""

    def __init__(self, world: World, history: History, names: tuple[str, ...], topic: str, deduplicated: bool) -> None:
        super().__init__(history, lambda: world.loop.now_s)
        sent: dict[Name, bytes] = {}
        self.sites = {name: TopicHistory(topic, deduplicated, sent) for name in names}
        self.topics = dict(self.sites)
        self.followed: dict[str, Followed] = {}
        self._given: dict[str, dict[Place, Name]] = {}
        """What a consumer's present connection has been given."""

    def follow(self, name: str, kind: str) -> Followed:
        """A replicated subscription."""
        first = SubscriptionHistory(name, kind, replicated=True)
        sites = {
            site: SubscriptionHistory(name, kind, delivered=first.delivered, newest=first.newest, replicated=True)
            for site in self.sites
        }
        for site, history in sites.items():
            self.sites[site].subscriptions[name] = history
        followed = self.followed[name] = Followed(name, sites, set())
        return followed

    def delivered(
        self,
        topic: TopicHistory,
        subscription: SubscriptionHistory,
        place: Place,
        payload: bytes,
        holder: Holder,
        sent_s: float,
    ) -> None:
        try:
            self._given.setdefault(holder.consumer, {})[place] = name_of_payload(payload)[0]
        except ValueError:
            pass  # told below
        super().delivered(topic, subscription, place, payload, holder, sent_s)

    def acknowledges(self, subscription: str, consumer: str, places: list[Place], cumulative: bool) -> None:
        """A consumer is about to send an acknowledgement of what it was given."""
        followed, given = self.followed.get(subscription), self._given.get(consumer, {})
        if followed is None:
            return
        chosen = [place for place in given if place <= places[-1]] if cumulative else places
        followed.acknowledged.update(given[place] for place in chosen if place in given)

    def _check_exclusive(
        self, subscription: SubscriptionHistory, who: str, key: str, place: Place, holder: Holder
    ) -> None:
        """What somebody has acknowledged at another site is outstanding nowhere, though a consumer may still hold it."""
        followed = self.followed[subscription.name]
        held = subscription.outstanding.get(key, {})
        for each, other in list(held.items()):
            if self._given.get(other.consumer, {}).get(each) in followed.acknowledged:
                del held[each]
        super()._check_exclusive(subscription, who, key, place, holder)

    # ---- The end

    def skipped(self, followed: Followed) -> list[Name]:
        """Messages with a receipt that nobody has acknowledged."""
        return [name for topic in self.sites.values() for name in topic.receipts if name not in followed.acknowledged]

    def check_logs(self, logs: Mapping[str, Log]) -> None:
        """All that every site holds."""
        for site, log in logs.items():
            self._check_loops(site, log)
            entries = [
                (Place(*place, index if entry.batched else -1), payload)
                for place, entry in log.items()
                for index, payload in enumerate(entry.payloads)
            ]
            self.stored(self.sites[site], entries)
            for source, there in logs.items():
                if source != site:
                    self._compare(source, there, site, log)

    def _check_loops(self, site: str, log: Log) -> None:
        for place, entry in log.items():
            for payload in entry.payloads if entry.source else ():
                name = name_of_payload(payload)[0]
                if name.producer.startswith(f"{site}-"):
                    self.violate(NO_LOOPS, f"{site}: {place} holds {name}, which came from {entry.source}")

    def _compare(self, source: str, there: Log, site: str, here: Log) -> None:
        sent = [(place, entry.payloads) for place, entry in there.items() if not entry.source]
        came = [(entry.place, entry.payloads) for entry in here.values() if entry.source == source]
        self.history.count("replicated entries compared", len(came))
        if sent == came:
            return
        missing = [place for place, _ in sent if place not in {each for each, _ in came}]
        surplus = [place for place, _ in came if place not in {each for each, _ in sent}]
        doubled = sorted({place for place, _ in came if sum(each == place for each, _ in came) > 1}, key=str)
        about = f"{len(missing)} missing {missing[:3]}, {len(surplus)} too many {surplus[:3]}, {len(doubled)} twice {doubled[:3]}"
        self.violate(ARRIVES, f"{source} holds {len(sent)} entries of its own, and {len(came)} are in {site}: {about}")
