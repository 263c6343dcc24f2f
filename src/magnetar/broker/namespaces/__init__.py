"""Tenants, namespaces, bundles, ownership and lookup: who may have topics, and which broker serves them."""
