"""The share of the computation at its edge."""

from stretch.planning.constraints.capacity import Capacity
from tests.stretch.planning.combinations import SEGMENT, ways


def test_segment_keeps_its_share_of_the_computation():
    macs = SEGMENT.graph.macs
    assert macs % 4 == 0
    found = ways(macs=[macs // 4 * 3 - 1, macs // 4 * 3, 2 * macs])
    assert Capacity().mask(0.75, found, 1.0).tolist() == [False, True, True]
