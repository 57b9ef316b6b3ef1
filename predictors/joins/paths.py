"""The original segment's own parallel paths, each on its own processor; they meet as in the original."""

from predictors.join import Join, joins

joins.register("paths")(Join("concat", exact=True))
joins.register("terms")(Join("sum", exact=True))
