"""Bundles and the brokers that own them: an ephemeral node per bundle, acquired by compare-and-set, as in Pulsar.

A bundle is served from the moment its node is known to be ours until it is given up, or until the session is lost, whichever comes
first: then nothing is served any more, before another broker can take it. What a broker that was paused still writes, the ledgers
refuse: their next owner has fenced them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from magnetar.base.clock import Clock
from magnetar.base.errors import BadVersionError, MetadataError, NodeNotFoundError
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.namespaces.errors import NotOwnedError
from magnetar.broker.namespaces.records import (
    BrokerAddress,
    BundleName,
    Owner,
    bundle_of,
    owned_bundles,
    owner_record,
    parse_owner,
)
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.naming import TopicName
from magnetar.metadata import paths
from magnetar.metadata.store import MUST_NOT_EXIST, RESYNC, MetadataStore, SessionEvent

logger = logging.getLogger(__name__)

MOVE_WAIT_S: Final = 10.0
"""Time-out of waiting for a bundle that is being handed over; then the client is told to try again."""

SUCCESSOR_TIMEOUT_S: Final = 3.0
"""How long only the named successor may take a bundle, counted from the moment when it has no owner. After that, the broker that is
asked next decides anew. While the owner still closes the bundle's topics, which may take any time, the successor stays the successor."""


class OwnerIndex:
    """The owner of every bundle of the cluster: a copy of the nodes below `/namespace` that the store's watch keeps up to date.

    It reads what has changed when it is asked. Lookups, which must not be wrong, read the one node instead (`read_owner`).
    """

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._owners: dict[BundleName, Owner] = {}
        self._stale: dict[BundleName, None] = {}
        self._all_stale = True
        self._unwatch = metadata.watch(self._changed, paths.NAMESPACE_OWNERSHIP_PATH)

    def close(self) -> None:
        self._unwatch()

    def _changed(self, path: str) -> None:
        bundle = BundleName.of_path(path)
        if bundle is not None:
            self._stale[bundle] = None
        elif path == RESYNC:
            self._all_stale = True

    async def all(self) -> Mapping[BundleName, Owner]:
        """Every bundle that somebody has."""
        if self._all_stale:
            self._stale |= dict.fromkeys([*self._owners, *await owned_bundles(self._metadata)])
            self._all_stale = False
        while self._stale:
            bundle = next(iter(self._stale))
            del self._stale[bundle]  # before the read: a change meanwhile makes it stale again
            try:
                owner = await read_owner(self._metadata, bundle)
            except MetadataError:
                self._stale[bundle] = None
                raise
            if owner is None:
                self._owners.pop(bundle, None)
            else:
                self._owners[bundle] = owner
        return self._owners

    async def of_broker(self, broker_id: str) -> list[BundleName]:
        """The bundles that a broker has."""
        return [bundle for bundle, owner in (await self.all()).items() if owner.broker_id == broker_id]


async def read_owner(metadata: MetadataStore, bundle: BundleName) -> Owner | None:
    """The owner according to the store at this moment."""
    node = await metadata.get(bundle.path)
    return None if node is None else parse_owner(node.value, node.owner)


class ExpectedSuccessors:
    """Bundles that are being handed over, each with the broker that shall have it next, as the bundle's node said it.

    While a bundle is handed over, only its successor may acquire it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._expected: dict[BundleName, tuple[str, float]] = {}
        """The successor, and until when it is waited for: infinity while the bundle still has the owner that names it."""

    def expect(self, bundle: BundleName, successor: str) -> None:
        """`successor`: a broker id; empty: nobody, or it has arrived."""
        if successor:
            self._expected[bundle] = successor, math.inf
        else:
            self._expected.pop(bundle, None)

    def given_up(self, bundle: BundleName) -> None:
        """Nobody owns the bundle any more, as far as this broker knows: its successor has `SUCCESSOR_TIMEOUT_S` from now on to take it."""
        successor, until_s = self._expected.get(bundle, ("", 0.0))
        if successor and until_s == math.inf:
            self._expected[bundle] = successor, self._clock.monotonic_s() + SUCCESSOR_TIMEOUT_S

    def all_given_up(self) -> None:
        """Changes were missed: any of the bundles may have lost its owner meanwhile."""
        for bundle in self._expected:
            self.given_up(bundle)

    def expected(self, bundle: BundleName) -> str:
        """The successor; empty when there is none."""
        successor, until_s = self._expected.get(bundle, ("", 0.0))
        if successor and self._clock.monotonic_s() >= until_s:
            del self._expected[bundle]
            return ""
        return successor


class Ownership:
    """The bundles this broker holds, for the life of its metadata session."""

    def __init__(
        self, metadata: MetadataStore, registry: NamespaceRegistry, address: BrokerAddress, clock: Clock
    ) -> None:
        self._metadata = metadata
        self._registry = registry
        self.address = address
        self.successors = ExpectedSuccessors(clock)
        self.touched: Callable[[BundleName], None] = lambda bundle: None
        """Called when a bundle's node was created, written or deleted, by whomever."""
        self._held: dict[BundleName, None] = {}
        self._leaving: dict[BundleName, str] = {}
        self._waiting: dict[BundleName, list[asyncio.Future[None]]] = {}
        self._epoch = 0
        self._without_session = False
        self._unwatch = metadata.watch(self._changed, paths.NAMESPACE_OWNERSHIP_PATH)
        self._unhear = metadata.on_session(self._session)

    def close(self) -> None:
        self._unwatch()
        self._unhear()

    @property
    def broker_id(self) -> str:
        return self.address.broker_id

    @property
    def held(self) -> list[BundleName]:
        """The bundles of this broker in the order in which they were acquired."""
        return list(self._held)

    @property
    def owned_bundles(self) -> list[str]:
        """`tenant/namespace/0x..._0x...`."""
        return [str(bundle) for bundle in self._held]

    def serves(self, bundle: BundleName) -> bool:
        """Held, and not about to be given up."""
        return bundle in self._held and bundle not in self._leaving

    def serves_topic(self, topic: TopicName) -> bool:
        """True if this broker serves the topic's bundle; unlike `bundle_of`, it does not read the metadata."""
        return any(in_bundle(topic, bundle) for bundle in self._held if self.serves(bundle))

    async def bundle_of(self, topic: TopicName) -> BundleName:
        """Raises NamespaceNotFoundError."""
        boundaries = await self._registry.boundaries(topic.namespace_name)
        return BundleName(topic.namespace_name, bundle_of(topic, boundaries))

    async def owner(self, bundle: BundleName) -> Owner | None:
        """The owner according to the metadata store at this moment."""
        return await read_owner(self._metadata, bundle)

    # ---- Taking

    async def require(self, topic: TopicName) -> BundleName:
        """The topic's bundle, once this broker owns it: a free bundle is acquired, one that is being handed over to here is waited for.

        Raises NotOwnedError when it is another broker's, ServiceNotReadyError while that cannot be said.
        """
        while True:
            bundle = await self.bundle_of(topic)
            if self.serves(bundle):
                return bundle
            with self.next_change(bundle) as changed:
                if self.successors.expected(bundle) not in ("", self.broker_id):
                    raise NotOwnedError(topic, None)
                owner = await self.take(bundle)
                if self.serves(bundle):
                    return bundle
                if owner is None:
                    continue  # the namespace was split meanwhile
                if owner.broker_id != self.broker_id and not (owner.leaving and owner.successor == self.broker_id):
                    raise NotOwnedError(topic, owner.address)
                await arrival(changed, f"{bundle} is being unloaded; try again")

    async def take(self, bundle: BundleName) -> Owner | None:
        """Acquire the bundle unless it has an owner; returns the owner afterwards, None if the bundle does not exist any more."""
        if self._without_session:
            raise ServiceNotReadyError(
                "Failed to acquire ownership: this broker has no session with the metadata store"
            )
        epoch = self._epoch
        try:
            await self._metadata.put(bundle.path, owner_record(self.address), MUST_NOT_EXIST, ephemeral=True)
        except BadVersionError:
            owner = await self.owner(bundle)
            if owner is None:
                return await self.take(bundle)
            if owner.session != self._metadata.session_id or bundle in self._leaving or bundle in self._held:
                return owner  # ours, but not held: an answer to our own put was lost
        if epoch != self._epoch:
            raise ServiceNotReadyError(
                "Failed to acquire ownership: the session with the metadata store ended meanwhile"
            )
        if not await self._exists(bundle):
            await self._delete(bundle)
            self._registry.forget_boundaries(bundle.namespace)
            return None
        if epoch != self._epoch:
            raise ServiceNotReadyError(
                "Failed to acquire ownership: the session with the metadata store ended meanwhile"
            )
        self.successors.expect(bundle, "")
        if bundle not in self._held:
            self._held[bundle] = None
            logger.info("bundle taken bundle=%s", bundle)
        return Owner(self.address, self._metadata.session_id)

    async def _exists(self, bundle: BundleName) -> bool:
        """Whoever takes a bundle looks at the boundaries once more: a split deletes the old bundle's node after it has changed them."""
        boundaries = await self._registry.stored_boundaries(bundle.namespace)
        low, _, high = bundle.range.partition("_")
        return (low, high) in itertools.pairwise(boundaries)

    # ---- Giving up

    async def begin_leaving(self, bundle: BundleName, successor: str = "") -> None:
        """Stop serving anything new from the bundle, and tell the others its successor. Raises NotOwnedError."""
        node = await self._metadata.get(bundle.path)
        if node is None or node.owner != self._metadata.session_id or not self.serves(bundle):
            address = None if node is None else parse_owner(node.value, node.owner).address
            raise NotOwnedError(bundle, None if address == self.address else address)
        self._leaving[bundle] = successor
        self.successors.expect(bundle, successor)
        try:
            record = owner_record(self.address, leaving=True, successor=successor)
            await self._metadata.put(bundle.path, record, node.version)
        except BadVersionError:
            self.forget(bundle)
            raise NotOwnedError(bundle, None) from None
        except BaseException:
            self._leaving.pop(bundle, None)  # if it was written all the same, `look` takes it back
            self.successors.expect(bundle, "")
            raise

    async def release(self, bundle: BundleName) -> None:
        """Give the bundle up; its successor may acquire it, or anybody if there is none."""
        if bundle not in self._held:
            return
        self._leaving.setdefault(bundle, "")
        try:
            await self._delete(bundle)
        finally:
            self.forget(bundle)
        logger.info("bundle given up bundle=%s", bundle)

    async def _delete(self, bundle: BundleName) -> None:
        """Delete the bundle's node if it is ours: after a lost session it may be another broker's."""
        node = await self._metadata.get(bundle.path)
        if node is not None and node.owner == self._metadata.session_id:
            try:
                await self._metadata.delete(bundle.path, node.version)
            except (NodeNotFoundError, BadVersionError):
                return

    async def look(self, bundle: BundleName) -> bool:
        """Follow a changed node: remember the successor, and acquire the bundle if that is this broker. True if this broker has lost it."""
        owner = await self.owner(bundle)
        own = owner is not None and owner.session == self._metadata.session_id
        if self.serves(bundle):
            if not own:
                self.forget(bundle)
            elif owner is not None and owner.leaving:
                await self._metadata.put(bundle.path, owner_record(self.address))
            return not own
        if owner is not None:
            self.successors.expect(bundle, owner.successor if owner.leaving else "")
            return False
        self.successors.given_up(bundle)
        if self.successors.expected(bundle) == self.broker_id:
            await self.take(bundle)
        return False

    def forget(self, bundle: BundleName) -> None:
        """Its node is not ours any more."""
        self._held.pop(bundle, None)
        self._leaving.pop(bundle, None)

    async def split(self, bundle: BundleName, middle: str) -> tuple[BundleName, BundleName]:
        """Two bundles out of one that is served here, and go on being. Raises NotOwnedError, PreconditionFailedError.

        The new ones are ours before anybody can look for them, the old one until nobody does any more.
        """
        if not self.serves(bundle):
            owner = await self.owner(bundle)
            raise NotOwnedError(bundle, None if owner is None else owner.address)
        low, _, high = bundle.range.partition("_")
        parts = BundleName(bundle.namespace, f"{low}_{middle}"), BundleName(bundle.namespace, f"{middle}_{high}")
        epoch = self._epoch
        for part in parts:
            await self._metadata.put(part.path, owner_record(self.address), ephemeral=True)
        try:
            await self._registry.split_bundle(bundle.namespace, bundle.range, middle)
        except BaseException:
            for part in parts:
                await self._delete(part)
            raise
        if epoch != self._epoch:
            raise ServiceNotReadyError("the session with the metadata store ended while the bundle was split")
        self._held.update(dict.fromkeys(parts))
        await self.release(bundle)
        return parts

    # ---- What others do

    @contextmanager
    def next_change(self, bundle: BundleName) -> Iterator[asyncio.Future[None]]:
        """A future that is done at the next change of the bundle's node. Begin it before you read the node."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(bundle, []).append(future)
        try:
            yield future
        finally:
            waiting = self._waiting[bundle]
            waiting.remove(future)
            if not waiting:
                del self._waiting[bundle]

    def _changed(self, path: str) -> None:
        bundle = BundleName.of_path(path)
        if bundle is not None:
            self._wake(bundle)
            self.touched(bundle)
        elif path == RESYNC:
            self.successors.all_given_up()
            for waited in list(self._waiting):
                self._wake(waited)

    def _wake(self, bundle: BundleName) -> None:
        for future in self._waiting.get(bundle, []):
            if not future.done():
                future.set_result(None)

    def _session(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self._epoch += 1
            self._without_session = True
            self._held.clear()
            self._leaving.clear()
        elif event is SessionEvent.SESSION_REESTABLISHED:
            self._without_session = False


async def arrival(changed: asyncio.Future[None], problem: str, timeout_s: float = MOVE_WAIT_S) -> None:
    """Wait for a change. Raises ServiceNotReadyError after `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            await changed
    except TimeoutError:
        raise ServiceNotReadyError(problem) from None


def in_bundle(topic: TopicName, bundle: BundleName) -> bool:
    """True if the topic's hash falls into the bundle. The other bundles, which may be changing, need not be known."""
    low, _, high = bundle.range.partition("_")
    edges = dict.fromkeys(("0x00000000", low, high, "0xffffffff"))
    return topic.namespace_name == bundle.namespace and bundle_of(topic, list(edges)) == bundle.range
