"""The simulator itself, seeds, historic schedules and mutations."""
