"""Segments of scalable topics, which the official client does not open: their layout, their cursors, and numbered lanes into them."""
