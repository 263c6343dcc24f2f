"""One seed with several clusters from beginning to end."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any, Final

from magnetar.bookkeeper.cluster import initialize_cluster
from magnetar.broker.namespaces.policies import new_document
from magnetar.broker.naming import TopicName
from magnetar.broker.replicators.names import SOURCE_POSITION_PROPERTY
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.metadata import paths
from magnetar.testing.sim.faults import Nemesis
from magnetar.testing.sim.geo.promises import FOLLOWS, NOT_SKIPPED, Followed, GeoPromises, Log, Stored
from magnetar.testing.sim.geo.scenario import GeoScenario, geo_scenario
from magnetar.testing.sim.history import History
from magnetar.testing.sim.messaging.clients import Consumer, messages_of_batch
from magnetar.testing.sim.messaging.connection import ClientError
from magnetar.testing.sim.messaging.nodes import BROKER_PORT, HTTP_PORT, NAMESPACE, ApplicationNode, BrokerNode
from magnetar.testing.sim.messaging.promises import BACK, Place, SubscriptionHistory, TopicHistory
from magnetar.testing.sim.messaging.run import (
    KEEPER,
    LOOK_S,
    QUIET_S,
    MessagingCluster,
    MessagingRun,
    Trims,
    Worker,
    lead,
)
from magnetar.testing.sim.metadata import MetadataService
from magnetar.testing.sim.nodes import BookieNode, Node
from magnetar.testing.sim.run import Result
from magnetar.testing.sim.world import World, until, when
from magnetar.wire.pulsar.headers import parse_metadata, payload_of
from magnetar.wire.pulsar.PulsarApi_pb2 import CommandMessage

TOPIC: Final = f"persistent://{NAMESPACE}/geo"

SETTLE_S: Final = 240.0
"""After healing everything must be everywhere within this: a half-open connection is noticed after 60 s, and a replicator waits up to 60 s
between two attempts."""

BUNDLES: Final = 4
"""Of the namespace."""


def run_geo_seed(seed: str, chosen: GeoScenario | None = None, watch: bool = False) -> Result:
    """The whole life of a seed's world. With `chosen`, another configuration than the seed's own."""
    with World(f"{seed}/geo") as world:
        world.trace.watch = watch
        return lead(seed, world, GeoRun(world, chosen or geo_scenario(seed)))


class Site:
    """One cluster: its metadata service and its servers."""

    def __init__(self, world: World, name: str, metadata: MetadataService, plan: GeoScenario) -> None:
        self.name = name
        self.metadata = metadata
        settings = {**plan.broker, "cluster_name": name}
        self.bookies = [
            BookieNode(world, f"{name}-bookie-{each}", **plan.bookie) for each in range(1, plan.bookies + 1)
        ]
        self.brokers = [BrokerNode(world, f"{name}-broker-{each}", **settings) for each in range(1, plan.brokers + 1)]
        for node in (*self.bookies, *self.brokers):
            node.metadata = metadata

    @property
    def record(self) -> dict[str, str]:
        """As other clusters know it."""
        return {
            "brokerServiceUrl": "pulsar://" + ",".join(f"{each.name}:{BROKER_PORT}" for each in self.brokers),
            "serviceUrl": f"http://{self.brokers[0].name}:{HTTP_PORT}",
        }


class GeoCluster(MessagingCluster):
    """All nodes of all sites. The name of a node begins with its site's."""

    sites: list[Site]

    def site_of(self, node: Node) -> Site:
        return next(site for site in self.sites if node.name.startswith(f"{site.name}-"))

    def others(self, node: Node) -> list[Node]:
        site = self.site_of(node)
        if isinstance(node, BookieNode):
            return list(site.brokers)
        if isinstance(node, BrokerNode):
            near = [each for each in self.applications if self.site_of(each) is site]
            return [
                *site.bookies,
                *near,
                *(each for other in self.sites if other is not site for each in other.brokers),
            ]
        return list(site.brokers)


class GeoNemesis(Nemesis):
    """And what goes wrong between sites."""

    def __init__(self, cluster: GeoCluster, plan: GeoScenario, history: History) -> None:
        super().__init__(cluster, plan, history)
        self._sites = cluster.sites
        self._plan = plan
        self._site_rng = cluster.world.rng("between sites")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            group.create_task(self._between_sites())

    async def _between_sites(self) -> None:
        plan, rng = self._plan, self._site_rng
        while plan.site_faults:
            await asyncio.sleep(rng.expovariate(1 / plan.site_fault_gap_s))
            self.between(rng.choice(plan.site_faults))

    def between(self, name: str) -> None:
        """One fault between sites."""
        self._history.count(f"fault: {name}")
        first, *others = self._site_rng.sample(self._sites, len(self._sites))
        second = others[0]
        self._world.note("nemesis", f"{name}: {first.name}, {second.name}")
        match name:
            case "site cut":
                self.cut_pairs([*_ways(first, second), *_ways(second, first)])
            case "site one-way cut":
                self.cut_pairs(_ways(first, second))
            case "site slow":
                self._slow(first, second)
            case "site reset":
                for source, target in _ways(first, second):
                    self._world.wires.reset(source, target)
            case "site away":
                self.cut_pairs([pair for each in others for pair in (*_ways(first, each), *_ways(each, first))])

    def _slow(self, first: Site, second: Site) -> None:
        wires, factor = self._world.wires, self._site_rng.choice((5.0, 50.0))
        for pair in (*_ways(first, second), *_ways(second, first)):
            wires.slow_down(*pair, factor)
            self._later(partial(wires.normal_speed, *pair))


def _ways(source: Site, target: Site) -> list[tuple[str, str]]:
    return [(one.name, other.name) for one in source.brokers for other in target.brokers]


class GeoRun(MessagingRun):
    """One topic in all sites, with producers everywhere and subscriptions that are consumed at one site at a time."""

    settle_s = SETTLE_S

    def __init__(self, world: World, plan: GeoScenario) -> None:
        self.plan = plan
        self.homes: dict[str, str] = {}
        """The site where a subscription is consumed, by its name."""
        super().__init__(world, plan)
        self._travel = world.rng("failovers")

    # ---- What there is

    def _make_cluster(self) -> MessagingCluster:
        return GeoCluster(self.world, self.scenario.only_brokers)

    @property
    def sites(self) -> list[Site]:
        assert isinstance(self.cluster, GeoCluster)
        return self.cluster.sites

    def _make_servers(self) -> None:
        world, plan = self.world, self.plan
        assert isinstance(self.cluster, GeoCluster)
        services = [world.metadata, *(MetadataService(world.wires, world.moments) for _ in plan.site_names[1:])]
        named = zip(plan.site_names, services, strict=True)
        self.cluster.sites = [Site(world, name, metadata, plan) for name, metadata in named]
        self.cluster.bookies = [bookie for site in self.sites for bookie in site.bookies]
        self.cluster.brokers = [broker for site in self.sites for broker in site.brokers]
        for first in self.cluster.brokers:
            for second in self.cluster.brokers:
                if self.cluster.site_of(first) is not self.cluster.site_of(second):
                    world.wires.distance_s[first.name, second.name] = plan.far_s

    def _make_clients(self) -> None:
        plan, applications = self.plan, self.cluster.applications
        geo = self.geo = GeoPromises(self.world, self.history, plan.site_names, TOPIC, plan.deduplicated)
        self.promises = geo
        for kind, _ in plan.subscriptions:
            geo.follow(kind, kind)
            self.homes[kind] = plan.site_names[0]
        for site, topic in geo.sites.items():
            for index in range(1, plan.producers + 1):
                name = f"{site}-producer-{index}"
                if site not in plan.quiet_sites:
                    applications.append(ApplicationNode(self.world, name, partial(self._produce, topic, name)))
            for kind, consumers in plan.subscriptions:
                for index in range(1, consumers + 1):
                    program = partial(self._consume_here, site, geo.followed[kind])
                    applications.append(ApplicationNode(self.world, f"{site}-consumer-{kind}-{index}", program))

    def _brokers_of(self, node: ApplicationNode) -> list[str]:
        assert isinstance(self.cluster, GeoCluster)
        return [broker.name for broker in self.cluster.site_of(node).brokers]

    async def _initialize(self) -> None:
        names = list(self.plan.site_names)
        for site in self.sites:
            eyes = site.metadata.eyes
            await initialize_cluster(eyes, self.world.rng(f"cluster {site.name}"))
            for other in self.sites:
                await eyes.put(paths.cluster_path(other.name), json.dumps(other.record).encode())
            tenant, namespace = NAMESPACE.split("/")
            await eyes.put(paths.tenant_path(tenant), json.dumps({"adminRoles": [], "allowedClusters": names}).encode())
            document = {**new_document(site.name, BUNDLES), "replication_clusters": names}
            await eyes.put(paths.policies_path(tenant, namespace), json.dumps(document).encode())

    def _make_nemesis(self) -> Nemesis:
        assert isinstance(self.cluster, GeoCluster)
        return GeoNemesis(self.cluster, self.plan, self.history)

    def _watch_metadata(self) -> None:
        for site in self.sites:
            site.metadata.on_change = Trims(self.cluster, self.promises, site.metadata).changed

    # ---- Its life

    async def main(self) -> None:
        moves = self.world.loop.spawn(self.world.loop.outside, self._fail_over(), "failovers")
        await super().main()
        moves.cancel()

    async def _fail_over(self) -> None:
        """Send the consumers of a subscription to another site now and then, until the faults are over."""
        plan, rng = self.plan, self._travel
        for at_s, site in plan.failovers:
            await asyncio.sleep(max(0.0, at_s - self.world.loop.now_s))
            for name in self.homes if not self.draining else ():
                self._move(name, site)
        while not plan.failovers and plan.subscriptions:
            await asyncio.sleep(rng.expovariate(1 / plan.failover_gap_s))
            if self.draining:
                return
            name = rng.choice(list(self.homes))
            site = rng.choice([site for site in plan.site_names if site != self.homes[name]])
            if plan.between_s:
                self._move(name, "")
                await asyncio.sleep(rng.uniform(0, plan.between_s))
            self._move(name, site)

    def _move(self, subscription: str, site: str) -> None:
        self.world.note("world", f"{subscription} goes on in {site or 'no cluster'}")
        self.history.count("failovers", bool(site))
        self.homes[subscription] = site

    async def _create_subscriptions(self, node: ApplicationNode) -> None:
        """The topic everywhere, and every subscription before the first message, at all sites or at the first."""
        for site, topic in self.geo.sites.items():
            await self._as_application(f"{site}-setup", partial(self._create_at, site, topic))
        await until(lambda: all(self._links(site) for site in self.sites), self.settle_s)

    async def _create_at(self, site: str, topic: TopicHistory, node: ApplicationNode) -> None:
        kept = [SubscriptionHistory(KEEPER, "Exclusive")] if self.plan.keeper else []
        made = topic.subscriptions.values() if self.plan.everywhere or site == self.plan.site_names[0] else []
        opened = [SubscriptionHistory("setup", "Exclusive")] if not kept and not made else []
        for subscription in [*made, *kept, *opened]:
            consumer = self._consumer(node, topic, subscription, queue=1)
            async with asyncio.TaskGroup() as group:
                group.create_task(consumer.run())
                await until(lambda consumer=consumer: consumer.registered, self.settle_s)  # type: ignore[misc]
                consumer.stop()

    def _topic_at(self, site: Site) -> PersistentTopic | None:
        """As the broker has it that serves it."""
        for node in site.brokers:
            topic = node.broker.topics.get_loaded(TopicName.parse(TOPIC)) if node.broker is not None else None
            if isinstance(topic, PersistentTopic):
                return topic
        return None

    def _links(self, site: Site) -> bool:
        """All replicators of the site have a cursor."""
        topic = self._topic_at(site)
        return topic is not None and len(topic.replicators.clusters) == len(self.sites) - 1

    async def _heal(self) -> None:
        self.world.note("world", "heals")
        self.draining = True
        for node in self.cluster.nodes:
            node.start()
        await self._wait(BACK, self._all_serve, "bookies and brokers serve")
        await self._wait(BACK, self._all_have_receipts, "every message has a receipt")
        await self._wait(
            BACK, lambda: not self._unsent(), "replicators have sent everything", lambda: str(self._unsent())
        )
        for followed in self.geo.followed.values():
            await self._wait(
                NOT_SKIPPED,
                lambda followed=followed: not self.geo.skipped(followed),  # type: ignore[misc]
                f"everything is acknowledged on {followed.name}",
                lambda followed=followed: self._skipped_text(followed),  # type: ignore[misc]
            )
        if not self.history.violations:
            await self._as_far_everywhere()
        self.ended = True

    def _skipped_text(self, followed: Followed) -> str:
        skipped = self.geo.skipped(followed)
        given = sum(name in next(iter(followed.sites.values())).delivered for name in skipped)
        return f"skipped {len(skipped)}, of which {given} were given to a consumer: {skipped[:5]}"

    async def _as_far_everywhere(self) -> None:
        """One more message of each producer, so that a snapshot covers what was there; of what was there nobody has anything left."""
        for node in self.cluster.applications:
            producer = self._sending.get(node.name)
            if producer is not None and node.process is not None:
                self.world.loop.call_as(node.process, 0.0, producer.send, "last", [b""])
        await asyncio.sleep(LOOK_S)  # they are sent now
        allowed = len(self._sending)
        await self._wait(
            FOLLOWS,
            lambda: not self._behind(allowed),
            "the backlog is consumed everywhere",
            lambda: str(self._behind(allowed)),
        )
        await self._wait(BACK, self._all_have_receipts, "the last messages have receipts")
        await self._wait(
            BACK, lambda: not self._unsent(), "the last messages are everywhere", lambda: str(self._unsent())
        )

    def _unsent(self) -> list[str]:
        """What replicators have still to send."""
        found = []
        for site in self.sites:
            topic = self._topic_at(site)
            links = topic.replicators.all if topic is not None else []
            if len(links) < len(self.sites) - 1:
                found.append(f"{site.name} does not serve the topic")
            found += [
                f"{site.name} to {each.remote}: {each.backlog_entries}, {each.problem}"
                for each in links
                if each.backlog_entries
            ]
        return found

    def _behind(self, allowed: int) -> list[str]:
        """The last messages may be in front of the last snapshot."""
        found = []
        for site in self.sites:
            topic = self._topic_at(site)
            found += [
                f"{site.name} {each.name}: {each.backlog_entries}"
                for each in (topic.subscriptions.all if topic is not None else [])
                if each.name in self.geo.followed and each.backlog_entries > allowed
            ]
        return found

    # ---- Programs

    async def _consume_here(self, site: str, followed: Followed, node: ApplicationNode) -> None:
        """Whenever the subscription is at home at this site."""
        while not self.ended:
            if self.homes[followed.name] != site:
                await asyncio.sleep(LOOK_S)
                continue
            consumer = self._consumer(node, self.geo.sites[site], followed.sites[site], self.scenario.queue)
            consumer.acknowledges = partial(self.geo.acknowledges, followed.name)
            async with asyncio.TaskGroup() as group:
                group.create_task(consumer.run())
                work = group.create_task(GeoWorker(self, consumer, followed.sites[site]).work())
                await when(lambda: self.homes[followed.name] != site or self.ended, LOOK_S)
                work.cancel()
                consumer.stop()

    async def _read_everything(self, node: ApplicationNode) -> None:
        """What the logs hold, by the subscriptions that have acknowledged nothing."""
        logs: dict[str, Log] = {}
        for site, topic in self.geo.sites.items():
            await self._as_application(f"{site}-reader", partial(self._read_log, site, topic, logs))
        if len(logs) == len(self.sites):
            self.geo.check_logs(logs)

    async def _read_log(self, site: str, topic: TopicHistory, logs: dict[str, Log], node: ApplicationNode) -> None:
        keeper = SubscriptionHistory(KEEPER, "Exclusive")
        reader = LogReader(
            node, self._brokers_of(node), topic, self._rng(node), self.promises, keeper, 100, self._by_index
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(reader.run())
            quiet_until_s = self.world.loop.now_s + self.settle_s / 4
            while self.world.loop.now_s < quiet_until_s:
                await asyncio.sleep(LOOK_S)
                if reader.inbox:
                    quiet_until_s = self.world.loop.now_s + QUIET_S
                while reader.inbox:
                    reader.take()
            reader.stop()
        logs[site] = dict(sorted(reader.log.items()))


class GeoWorker(Worker):
    """Does not leave a message alone whose acknowledgement has failed: a new connection is given it again."""

    async def _acknowledge(self, places: list[Place], cumulative: bool = False) -> None:
        receipt = self._rng.random() < self._scenario.receipts
        try:
            await self._consumer.acknowledge(places, cumulative=cumulative, receipt=receipt)
        except ClientError:
            self._run.history.count("acknowledgements without a receipt")
            self._consumer.disconnect()


class LogReader(Consumer):
    """Keeps the entries that it is given."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.log: dict[tuple[int, int], Stored] = {}

    def _received(self, command: CommandMessage, rest: bytes) -> None:
        metadata, batched, payloads = parse_metadata(rest), False, [payload_of(rest)]
        if metadata.HasField("num_messages_in_batch"):
            batched, payloads = True, messages_of_batch(payloads[0], metadata.num_messages_in_batch)
        places = [each.value for each in metadata.properties if each.key == SOURCE_POSITION_PROPERTY]
        ledger_id, entry_id = (int(part) for part in places[0].split(":")) if places else (-1, -1)
        place = (ledger_id, entry_id) if places else None
        where = command.message_id.ledgerId, command.message_id.entryId
        self.log[where] = Stored(metadata.replicated_from, place, tuple(payloads), batched)
        super()._received(command, rest)
