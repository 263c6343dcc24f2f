"""The nodes of one run, and what can be said about all of them."""

from __future__ import annotations

import random

from magnetar.testing.sim.metadata import MACHINE
from magnetar.testing.sim.nodes import BookieNode, ClientNode, Node
from magnetar.testing.sim.world import World


class Cluster:
    """`bookies` and `clients`, in the order of their names."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.bookies: list[BookieNode] = []
        self.clients: list[ClientNode] = []
        self.helpers: list[ClientNode] = []
        """Processes of auto-recovery."""
        self.lost: set[str] = set()
        """Bookies that never come back: what was on them has to be copied."""
        self.given_up: set[str] = set()
        """Bookies whose data may be gone for good: nobody waits for them."""

    @property
    def nodes(self) -> list[Node]:
        return [*self.bookies, *self.clients, *self.helpers]

    @property
    def disturbed(self) -> list[Node]:
        """The nodes that faults of clients hit."""
        return [*self.clients, *self.helpers]

    @property
    def expected(self) -> list[BookieNode]:
        """Bookies that have to be there when all faults are over."""
        return [bookie for bookie in self.bookies if bookie.name not in self.given_up]

    def node_of(self, process_name: str) -> Node | None:
        """The node of a process."""
        name = process_name.partition("#")[0]
        return next((node for node in self.nodes if node.name == name), None)

    def others(self, node: Node) -> list[Node]:
        """The nodes that it talks to: bookies for clients, clients for bookies."""
        return list(self.clients) if isinstance(node, BookieNode) else list(self.bookies)

    def cut(self, node: Node, rng: random.Random) -> list[tuple[str, str]]:
        """Cables between the node and a random part of what it talks to, in one direction or both."""
        others = [other.name for other in self.others(node)] + [MACHINE]
        chosen = rng.sample(others, rng.randint(1, len(others)))
        ways = rng.choice((("out",), ("in",), ("out", "in")))
        pairs = []
        for other in chosen:
            if "out" in ways:
                pairs.append((node.name, other))
            if "in" in ways:
                pairs.append((other, node.name))
        return pairs
