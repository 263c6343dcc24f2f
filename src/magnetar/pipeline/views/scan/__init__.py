"""Views read as DataFrames, at one manifest."""
