"""Tenants, namespaces, bundles, ownership and lookup (survey 2.2, 2.3): who may have topics, and which broker serves them."""
