"""Subscriptions and their consumers: the noun that topics, connections and the admin API talk to."""
