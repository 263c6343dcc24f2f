"""The settings of a broker as users see them, a file for each subject: Pulsar's key names, defaults, bounds and texts."""
