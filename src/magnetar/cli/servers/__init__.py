"""Commands that serve, and that start clusters."""
