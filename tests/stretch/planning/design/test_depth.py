import pytest

from predictors.errors import StretchError
from stretch.planning.design.depth import drop_units
from stretch.planning.network.segments import split_segments


@pytest.mark.torch
def test_depth_of_merged_stages_shrinks_evenly(captured):
    segment = split_segments(captured("resnet50").graph, ["layer3_5_relu_2", "avgpool"])[1]
    kept = {op.name.split("_")[0] + "_" + op.name.split("_")[1] for op in drop_units(segment, 7).ops if op.kind == "conv"}
    assert kept == {*(f"layer1_{i}" for i in range(2)), *(f"layer2_{i}" for i in range(2)), *(f"layer3_{i}" for i in range(3))}


@pytest.mark.torch
@pytest.mark.parametrize("depth", [0, 5])
def test_depth_out_of_range_is_refused_with_the_range(captured, depth):
    segment = next(s for s in split_segments(captured("resnet50").graph) if s.name == "s2")
    with pytest.raises(StretchError, match=f"cannot have depth {depth}") as caught:
        drop_units(segment, depth)
    assert "1 to 4" in caught.value.hint
