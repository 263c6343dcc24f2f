"""Routes about tenants and namespaces: policies, rights, bundles."""
