"""Connections of our own to brokers, for whole entries: frames, the messages in them, and the end of a topic as it moves."""
