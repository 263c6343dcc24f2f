"""Pulsar's WebSocket API: producers, consumers and readers for browsers and languages without a client.

`framing` is the protocol on a connection of the HTTP server, `link` a client's side of a session of this broker without a socket
between them, `producing` and `consuming` what stands between the two, `documents` the JSON.
"""
