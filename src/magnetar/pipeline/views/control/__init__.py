"""The driver of a pipeline, and how other processes see it, reach it and rescale it."""
