"""Bytes to objects and back, and nothing else: no sockets, no clocks, no policy.

`pulsar/` holds the Pulsar binary protocol and the managed ledger's stored messages, `bookkeeper/` the bookie protocol's.
"""
