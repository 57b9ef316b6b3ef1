"""Stages are divided where no kernel spans."""

import pytest

from predictors.predictor import LatencyPredictor
from stretch.planning.network.parts import clean_cuts, divide
from stretch.planning.network.segments import split_segments
from stretch.planning.network.units import cut_points
from tests.predictors.networks import efficientnet, efficientnet_lite4, resnet50, small_resnet
from tests.predictors.specified import specified

MI9 = LatencyPredictor(specified("mi9"))
GATED = efficientnet([(1, 3, 1, 16, 1), (4, 3, 2, 24, 2)], 16, 64, 32, se=True, act="silu")


@pytest.mark.parametrize("graph", [small_resnet(), resnet50(), efficientnet_lite4(), GATED], ids=lambda graph: graph.name)
@pytest.mark.parametrize("processor", ["cpu", "gpu", "dsp"])
def test_kernels_of_the_parts_are_those_of_the_whole(graph, processor):
    clean = clean_cuts(graph, [MI9.kernels(graph, processor)])
    parts = [part for stage in split_segments(graph) for part in divide(graph, stage, clean)]
    assert [part.start for part in parts] == [graph.input.name, *(part.end for part in parts[:-1])]
    assert parts[-1].end == graph.output
    launched = [kernel.cost for part in parts for kernel in MI9.kernels(part.graph, processor)]
    assert launched == [kernel.cost for kernel in MI9.kernels(graph, processor)]


def test_parts_are_blocks_and_what_is_behind_the_last_tensor_with_rows():
    graph = resnet50()
    stages = {stage.name: stage for stage in split_segments(graph)}
    clean = set(cut_points(graph))
    assert [part.name for part in divide(graph, stages["s2"], clean)] == ["s2_1", "s2_2", "s2_3", "s2_4"]
    assert len({part.name for stage in stages.values() for part in divide(graph, stage, clean)}) == 19
    graph = efficientnet_lite4()
    head = divide(graph, split_segments(graph)[-1], set(cut_points(graph)))
    assert [part.graph.by_name[part.end].shape[2:] for part in head] == [(7, 7), ()]


def test_cut_point_that_a_kernel_spans_is_not_clean():
    graph = small_resnet()
    clean = clean_cuts(graph, [MI9.kernels(graph, "cpu")])
    convolution = next(op.name for op in graph.ops if op.kind == "conv")
    assert convolution in cut_points(graph)
    assert convolution not in clean
    assert graph.output in clean
