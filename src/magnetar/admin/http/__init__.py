"""HTTP/1.1 inside the event loop of the server: the parser in C, an ASGI application behind it, and every bound against hostile clients."""
