"""A small asyncio client over `wire/pulsar`, for what the official one cannot do: entries sent on as they are stored, markers included.

Entry point: `client.RemoteClient`. Nothing comes back by itself: a producer whose connection ended is closed; its owner opens another.
"""
