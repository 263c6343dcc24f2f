"""One epoch: the changes of all sources through all views, committed as one manifest."""
