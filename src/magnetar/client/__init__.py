"""Callers of other servers: HTTP (`async_http`, `blocking_http`), and a small asyncio client over `wire/pulsar`.

The latter does what the official client cannot: it sends entries on as they are stored, markers included. Entry point:
`client.RemoteClient`. Nothing comes back by itself: a producer whose connection ended is closed; its owner opens another.
"""
