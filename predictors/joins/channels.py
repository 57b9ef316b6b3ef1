"""Channels of one segment, on processors of their own: those of its output, side by side, or hidden ones, whose projections are added."""

from predictors.join import Join, joins

joins.register("channels")(Join("concat", exact=True))
joins.register("partial_sums")(Join("sum", exact=True))
