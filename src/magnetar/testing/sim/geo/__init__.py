"""Clusters that replicate a topic and its subscriptions to each other, in one simulated world.

`scenario` draws the configuration, `run` leads it, `promises` checks it, `mutations` has deliberate bugs.
"""
