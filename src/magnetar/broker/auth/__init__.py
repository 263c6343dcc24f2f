"""Authentication (`authenticate`) and authorization (`table`, `decide`, `authorize`) of clients, for the binary protocol and HTTP.

Credentials: `token`, `basic` and client certificates (`tls`). What is not in the table is denied.
"""
