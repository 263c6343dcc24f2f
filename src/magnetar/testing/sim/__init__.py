"""A deterministic simulator: clients, bookies and their helpers on a virtual clock, with a network and disks that fail.

`python -m magnetar.testing.sim --seeds 100`; how it works and what it does not model: docs/explanation/simulator.md.
"""
