import pytest

from predictors.fusion import fuse
from predictors.graph import OpGraph
from stretch.profiling.styles import STYLES, draw


@pytest.mark.parametrize("style", STYLES)
def test_a_seed_always_gives_the_same_network_and_another_seed_another(style):
    assert draw(style, 3) == draw(style, 3)
    assert draw(style, 3) != draw(style, 4)


@pytest.mark.parametrize("style", STYLES)
def test_networks_are_graphs_that_files_keep_and_small_enough_to_be_measured(style):
    for seed in range(8):
        graph = draw(style, seed)
        assert OpGraph.from_json(graph.to_json()) == graph
        assert 0 < graph.macs <= 2.5e9
        assert graph.input.shape[1] == 3


@pytest.mark.slow
def test_together_they_have_every_kind_of_kernel_and_the_shapes_of_real_networks():
    costs = [kernel.cost for style in STYLES for seed in range(25) for kernel in fuse(draw(style, seed), "onnxruntime")]
    assert {cost.kind for cost in costs} >= {"conv1x1", "conv", "depthwise", "grouped", "linear", "pool", "reduce", "elementwise", "copy"}
    dense = [cost for cost in costs if cost.kind in ("conv", "conv1x1")]
    assert {1, 9, 25, 49, 7} <= {cost.taps for cost in dense}
    assert {1, 4} <= {cost.stride for cost in dense}
    assert {9, 25, 49} <= {cost.taps for cost in costs if cost.kind == "depthwise"}
    assert {49, 56 * 56, 112 * 112} <= {cost.pixels for cost in dense}
    assert min(cost.out_channels for cost in dense) <= 16
    assert max(cost.out_channels for cost in dense) >= 1024
    assert {"add", "mul", "silu", "gelu", "layer_norm", "batch_norm"} <= {cost.variant for cost in costs}
