"""Paths that the original segment has already, on processors of their own: they meet as they do in the original."""

from predictors.join import Join, joins

joins.register("paths")(Join("concat", exact=True))
joins.register("terms")(Join("sum", exact=True))
