"""The load manager at work: every broker reports its load, the leader decides (`broker.load_balance`), owners carry it out."""
