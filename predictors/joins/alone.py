"""One branch: nothing is joined."""

from predictors.join import Join, joins

joins.register("none")(Join(None))
