"""Branches that are put together from blocks launch what branches that are built in one piece launch."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.predictor import LatencyPredictor
from stretch.planning.cost.branch import Wholes
from stretch.planning.design.branch_design import BranchScale
from stretch.planning.design.widths import legal_widths
from stretch.planning.network.segments import cut_segment, split_segments
from stretch.planning.network.units import feature_maps
from tests.effort import examples
from tests.predictors import networks
from tests.predictors.specified import specified

GRAPHS = {
    "bottleneck": lambda: networks.small_resnet(32, blocks=(2, 3, 2), mids=(8, 16, 32)),
    "inverted": lambda: networks.efficientnet([(1, 3, 1, 16, 2), (4, 3, 2, 24, 3), (4, 5, 2, 40, 3)], 16, 64, 32, se=True, act="silu"),
}


@cache
def setting(name):
    graph = GRAPHS[name]()
    ends = [graph.input.name] + [block.end for stage in split_segments(graph) for block in stage.blocks if block.end in feature_maps(graph)]
    predictor = LatencyPredictor(specified("mi9"))
    return graph, ends, predictor, Wholes(predictor)


def told(whole, *, named):
    kernels = whole.kernels
    return sorted((kernel.name if named else "", repr(kernel.cost), kernel.macs, kernel.elsewhere) for kernel in kernels)


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_branch_of_any_blocks_launches_the_kernels_of_the_one_in_one_piece(name, data):
    graph, ends, predictor, wholes = setting(name)
    first, last = sorted(data.draw(st.sets(st.integers(0, len(ends) - 1), min_size=2, max_size=2)))
    segment = cut_segment(graph, "run", ends[first], ends[last])
    processor = data.draw(st.sampled_from(("cpu", "gpu", "dsp")))
    align = predictor.device.processor(processor).width_slice
    width = data.draw(st.sampled_from(legal_widths(segment, align, 0.3)))
    entry = data.draw(st.sampled_from(segment.entries(width)))
    scale = BranchScale(processor, segment.depth, width, entry, 0, align)
    names = data.draw(st.sampled_from([(), ("grouped_conv=parts",)]))
    made, whole = wholes.of(segment, scale, segment.in_width, names), wholes._in_one(segment, scale, segment.in_width, names)
    assert told(made, named=False) == told(whole, named=False)
    assert sum(built.params for _, built in made.blocks) == sum(built.params for _, built in whole.blocks)
    assert made.rewrites == whole.rewrites
    by_block = [
        {at: (len(b.kernels), sum(k.macs for k in b.kernels)) for at, b in each.blocks if b.kernels and at > 0} for each in (made, whole)
    ]
    assert by_block[0] == by_block[1]
    readers = segment.graph.consumers[segment.start]
    assert sorted(k.name for k in made.readers(readers)) == sorted(k.name for k in whole.readers(readers))


@pytest.mark.parametrize("name", GRAPHS)
def test_blocks_that_are_alike_are_built_once(name):
    graph, _, predictor, _ = setting(name)
    wholes = Wholes(predictor)
    segment = next(s for s in split_segments(graph) if s.name == "s2")
    whole = wholes.of(
        segment, BranchScale("cpu", segment.depth, segment.width, align=predictor.device.processor("cpu").width_slice), segment.in_width, ()
    )
    assert len(whole.blocks) == segment.depth
    assert whole.blocks[1][1] is whole.blocks[2][1]
