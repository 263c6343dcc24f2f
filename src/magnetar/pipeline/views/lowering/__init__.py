"""From a catalog's plans to stages: what each view becomes before it runs."""
