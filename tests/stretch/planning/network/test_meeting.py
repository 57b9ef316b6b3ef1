import pytest

from predictors.graph import Op, OpGraph
from stretch.planning.network.segments import find_meeting_points, find_stem_end, split_segments


def stages(graph):
    return [(s.depth, s.width) for s in split_segments(graph) if s.name not in ("stem", "head")]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18", [(2, 64), (2, 128), (2, 256), (2, 512)]),
        ("resnet34", [(3, 64), (4, 128), (6, 256), (3, 512)]),
        ("resnet50", [(3, 256), (4, 512), (6, 1024), (3, 2048)]),
        ("regnet_x_400mf", [(1, 32), (2, 64), (7, 160), (12, 400)]),
        ("regnet_x_1_6gf", [(2, 72), (4, 168), (10, 408), (2, 912)]),
        pytest.param("efficientnet_b5", [(3, 24), (5, 40), (5, 64), (7, 128), (7, 176), (9, 304), (3, 512)], marks=pytest.mark.slow),
        ("mobilenet_v2", [(1, 16), (2, 24), (3, 32), (4, 64), (3, 96), (3, 160)]),
        ("mobilenet_v3_large", [(1, 16), (2, 24), (3, 40), (4, 80), (2, 112), (3, 160)]),
    ],
)
def test_meeting_points_are_the_stages_of_the_published_network(captured, name, expected):
    assert stages(captured(name).graph) == expected


@pytest.mark.torch
def test_boundary_is_pushed_past_activation_and_pooling(captured):
    assert find_meeting_points(captured("resnet18").graph) == ["layer1_1_relu_1", "layer2_1_relu_1", "layer3_1_relu_1", "avgpool"]


@pytest.mark.torch
def test_stem_of_a_resnet_ends_behind_its_pooling(captured):
    assert find_stem_end(captured("resnet18").graph) == "maxpool"


@pytest.mark.torch
def test_resolution_without_a_run_takes_its_last_narrowest_cut(captured):
    assert find_meeting_points(captured("efficientnet_b0").graph)[0] == "features_1_0_block_2_1"


def isotropic(blocks):
    conv = {"out_channels": 8, "kernel": (3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1), "groups": 1, "bias": False}
    ops = [Op("input", "input", attrs={"shape": (1, 3, 8, 8)}), Op("stem", "conv", ("input",), conv)]
    last = "stem"
    for i in range(blocks):
        ops += [Op(f"c{i}", "conv", (last,), conv), Op(f"a{i}", "add", (last, f"c{i}"))]
        last = f"a{i}"
    return OpGraph.build("isotropic", ops, last)


def test_net_of_one_long_run_is_divided_into_parts_of_equal_cost():
    assert [s.depth for s in split_segments(isotropic(12)) if s.branchable] == [3, 3, 3, 3]


def test_net_without_weights_has_no_meeting_point():
    graph = OpGraph.build("none", [Op("input", "input", attrs={"shape": (1, 3, 8, 8)}), Op("r", "relu", ("input",))], "r")
    assert find_meeting_points(graph) == []
