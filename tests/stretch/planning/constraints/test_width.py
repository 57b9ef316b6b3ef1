"""The floor on width."""

import pytest

from stretch.planning.constraints.width import WidthFloor
from tests.stretch.planning.combinations import SEGMENT


@pytest.mark.parametrize("floor", [0.25, 0.375, 0.5, 1 / 3])
def test_width_is_offered_from_the_floor_on(floor):
    edge = floor * SEGMENT.width
    offered = [WidthFloor().offers_width(floor, SEGMENT, width) for width in (edge - 0.01, edge, SEGMENT.width)]
    assert offered == [False, True, True]
