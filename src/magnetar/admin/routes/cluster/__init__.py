"""Routes about the cluster: brokers, bookies, their load and what limits them."""
