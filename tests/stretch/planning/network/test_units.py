import pytest

from predictors.graph import Op, OpGraph
from stretch.planning.network.segments import split_segments
from stretch.planning.network.units import cut_points, feature_maps, find_blocks


def diamond():
    one = {"kernel": (1, 1), "stride": (1, 1), "padding": (0,) * 4, "dilation": (1, 1), "groups": 1, "bias": False, "out_channels": 4}
    return OpGraph.build(
        "diamond",
        [
            Op("input", "input", attrs={"shape": (1, 4, 4, 4)}),
            Op("a", "conv", ("input",), one),
            Op("b", "conv", ("a",), one),
            Op("sum", "add", ("a", "b")),
            Op("relu", "relu", ("sum",)),
        ],
        "relu",
    )


def test_cut_points_are_exactly_the_operators_whose_removal_separates_output_from_input():
    graph = diamond()
    readers = {op.name: [o.name for o in graph.ops if op.name in o.inputs] for op in graph.ops}

    def reaches(start, without):
        seen, todo = set(), [start]
        while todo:
            name = todo.pop()
            if name not in seen and name != without:
                seen.add(name)
                todo += readers[name]
        return graph.output in seen

    separating = [op.name for op in graph.ops if op.name in (graph.input.name, graph.output) or not reaches(graph.input.name, op.name)]
    assert cut_points(graph) == separating


@pytest.mark.torch
def test_first_block_stays_where_the_stage_starts_with_an_identity_skip(captured):
    segment = next(s for s in split_segments(captured("resnet18").graph) if s.name == "s1")
    assert [b.removable for b in find_blocks(segment.graph)] == [False, True]


@pytest.mark.torch
def test_first_mbconv_without_skip_is_the_entry_block(captured):
    segment = next(s for s in split_segments(captured("mobilenet_v2").graph) if s.width == 64)
    blocks = find_blocks(segment.graph)
    assert [b.removable for b in blocks] == [False, True, True, True]
    assert blocks[0].start == segment.start


@pytest.mark.torch
def test_convolution_chains_are_units_where_there_are_no_skips(captured):
    segment = next(s for s in split_segments(captured("tiny_vgg").graph) if s.branchable)
    blocks = find_blocks(segment.graph)
    assert all(segment.graph.by_name[b.start].shape == segment.graph.by_name[b.end].shape for b in blocks if b.removable)
    assert any(b.removable for s in split_segments(captured("tiny_vgg").graph) for b in find_blocks(s.graph))


STATED = {"kernel": "copy", "variant": "permute", "in_channels": 1, "out_channels": 1, "groups": 1, "taps": 1, "pixels": 1, "weights": 0}


def test_tensor_whose_axes_may_mean_anything_is_no_feature_map():
    graph = diamond()
    one = graph.by_name["a"].attrs
    ops = [
        *graph.ops,
        Op("last", "opaque", ("relu",), {**STATED, "shape": (1, 4, 4, 4)}),
        Op("act", "silu", ("last",)),
        Op("both", "add", ("relu", "act")),
        Op("seen", "view", ("act",), {"shape": (1, 4, 2, 8)}),
        Op("conv", "conv", ("seen",), one),
        Op("tokens", "view", ("conv",), {"shape": (1, 4, 16)}),
    ]
    graph = OpGraph.build("mixed", ops, "tokens")
    assert feature_maps(graph) == {"input", "a", "b", "sum", "relu", "both", "conv"}
