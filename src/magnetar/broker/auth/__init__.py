"""Who a client is (`authenticate`) and what it may do (`table`, `decide`, `authorize`), for both the binary protocol and HTTP.

Credentials: `token`, `basic` and client certificates (`tls`). What is not in the table is denied.
"""
