"""Client connections: frames in, handlers, frames out. The only place where wire codes meet the error tree.

`listener` accepts, `session` is one connection, `routes` says which handler takes which command, `handlers/` holds one file per
noun. Data commands (SEND, ACK, FLOW, REDELIVER) are plain calls; control commands run as one task each,
when `requests` gives them their turn.
"""
