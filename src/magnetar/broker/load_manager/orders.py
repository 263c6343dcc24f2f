"""What the leader has decided, on its way to the owners: one node for each broker, taken away by whoever carries it out.

The metadata store carries them, so that brokers need no way to each other and no credentials; a broker that is gone takes its
orders with it. Nothing depends on an order: what is not carried out will be decided again.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final, Protocol

from magnetar.base.errors import BadVersionError, MagnetarError, NodeNotFoundError
from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.broker.load_balance.plan import Plan
from magnetar.broker.namespaces.records import BundleName
from magnetar.broker.naming import NamespaceName
from magnetar.metadata import paths
from magnetar.metadata.store import RESYNC, MetadataStore

logger = logging.getLogger(__name__)

ORDERS_MAX: Final = 1000
"""Orders of one decision for one broker; the others will be decided again."""


class Bundles(Protocol):
    """Carries out orders with bundles of this broker."""

    async def unload(self, bundle: BundleName, destination: str = "") -> None: ...

    async def split_by(self, bundle: BundleName, algorithm: str) -> None:
        """Raises PreconditionFailedError where no cut is possible."""
        ...


async def give_orders(metadata: MetadataStore, plan: Plan) -> None:
    """Write what each owner has to do, over whatever it has not begun."""
    by_broker: dict[str, dict[str, list[dict[str, str]]]] = {}
    for split in plan.splits:
        found = by_broker.setdefault(split.broker, {"split": [], "unload": []})
        found["split"].append({"bundle": split.bundle, "algorithm": split.algorithm, "reason": split.reason})
    for move in plan.moves:
        found = by_broker.setdefault(move.source, {"split": [], "unload": []})
        found["unload"].append({"bundle": move.bundle, "destination": move.destination, "reason": move.reason})
    for broker, orders in by_broker.items():
        orders = {kind: each[:ORDERS_MAX] for kind, each in orders.items()}
        await metadata.put(paths.load_orders_path(broker), json.dumps(orders).encode())


class Executor:
    """Carries out the orders for this broker, one after the other."""

    def __init__(self, metadata: MetadataStore, broker_id: str, bundles: Bundles, scope: TaskScope) -> None:
        self._metadata = metadata
        self._path = paths.load_orders_path(broker_id)
        self._bundles = bundles
        self._scope = scope
        self._busy = False
        self.unloads = 0
        """Carried out since the start, as `splits`."""
        self.splits = 0
        self._unwatch = metadata.watch(self._changed, self._path)

    async def start(self) -> None:
        """Delete orders that were meant for an earlier process of this name."""
        await self._take()

    def close(self) -> None:
        self._unwatch()

    def _changed(self, path: str) -> None:
        if path in (self._path, RESYNC) and not self._busy:
            self._busy = True
            self._scope.spawn(self._carry_out(), "load orders", REPORTED)

    async def _carry_out(self) -> None:
        try:
            while orders := await self._take():
                await self._run(orders)
        except MagnetarError as error:
            logger.warning("load orders not carried out, the leader will decide again error=%s", error)
        finally:
            self._busy = False

    async def _take(self) -> dict[str, Any]:
        """The orders, deleted; {} without any."""
        node = await self._metadata.get(self._path)
        if node is None:
            return {}
        try:
            await self._metadata.delete(self._path, node.version)
        except NodeNotFoundError:
            return {}
        except BadVersionError:
            return await self._take()
        try:
            found = json.loads(node.value)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    async def _run(self, orders: dict[str, Any]) -> None:
        for order in orders.get("split") or ():
            if await self._one("split", order, self._split):
                self.splits += 1
        for order in orders.get("unload") or ():
            if await self._one("unload", order, self._unload):
                self.unloads += 1

    async def _one(self, what: str, order: Any, act: Any) -> bool:
        try:
            bundle = parse_bundle(str(order["bundle"]))
            logger.info("load balance: %s bundle=%s reason=%s", what, bundle, order.get("reason"))
            await act(bundle, order)
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("load balance: an order that cannot be read: %s", error)
        except MagnetarError as error:
            logger.warning("load balance: %s not done bundle=%s error=%s", what, order["bundle"], error)
        else:
            return True
        return False

    async def _split(self, bundle: BundleName, order: dict[str, str]) -> None:
        await self._bundles.split_by(bundle, order["algorithm"])

    async def _unload(self, bundle: BundleName, order: dict[str, str]) -> None:
        await self._bundles.unload(bundle, order["destination"])


def parse_bundle(text: str) -> BundleName:
    """`tenant/namespace/0x..._0x...`. Raises ValueError, InvalidTopicNameError."""
    namespace, slash, bundle = text.rpartition("/")
    if not slash:
        raise ValueError(f"{text!r} is not a valid bundle")
    return BundleName(NamespaceName.parse(namespace), bundle)
