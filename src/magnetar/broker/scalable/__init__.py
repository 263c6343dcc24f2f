"""Scalable topics (PIP-460): `topic://` names a graph of segments over ranges of the key hash, which split and merge while in use."""
