"""Replicated subscriptions (PIP-33), the decisions: `snapshot_builder`, `snapshot_cache`, `replicated_subscription`. All pure."""
