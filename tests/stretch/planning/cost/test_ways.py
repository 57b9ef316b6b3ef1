"""Ways to run a segment know their branches."""

import numpy as np

from tests.stretch.planning.spaces import make_space


def test_every_combination_is_the_one_that_its_number_says():
    space = make_space()
    ways = next(each for each in space.options[1] if each.branched)
    shape = [len(branch) for branch in ways.candidates]
    assert len(ways.macs) == int(np.prod(shape))
    seen = {tuple((b.depth, b.width) for b in ways.chosen(index)) for index in range(len(ways.macs))}
    assert len(seen) == len(ways.macs)
