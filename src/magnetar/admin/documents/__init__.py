"""Bodies and answers of the admin API as types: what handlers decode, what the client returns, what the OpenAPI document describes.

Fields are Pulsar's in snake case; on the wire they are in camel case unless Pulsar's document says otherwise.
"""
