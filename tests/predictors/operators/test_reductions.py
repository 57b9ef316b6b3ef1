from predictors.graph import Op, OpGraph
from stretch.planning.network.channels import channel_groups


def test_length_of_channels_keeps_them_and_their_mean_holds_none_of_them():
    graph = OpGraph.build(
        "net",
        [
            Op("x", "input", attrs={"shape": (1, 6, 2, 5)}),
            Op("length", "global_l2_norm", ("x",), {"keepdims": True}),
            Op("mean", "channel_mean", ("length",)),
            Op("y", "div", ("length", "mean")),
        ],
        "y",
    )
    assert [graph.by_name[name].shape for name in ("length", "mean", "y")] == [(1, 6, 1, 1), (1, 1, 1, 1), (1, 6, 1, 1)]
    groups = channel_groups(graph)
    assert groups.pieces["y"] == groups.pieces["x"]
    assert groups.input_group not in groups.frozen
