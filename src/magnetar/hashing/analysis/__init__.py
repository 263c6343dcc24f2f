"""How good a scheme is: balance, migration between memberships, monotonicity, spread and load, measured on keys and on its geometry."""
