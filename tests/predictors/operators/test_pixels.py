import pytest

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from stretch.planning.network.channels import channel_groups


def shape(kind, attrs, read=(1, 3, 4, 6)):
    graph = OpGraph.build("net", [Op("x", "input", attrs={"shape": read}), Op("y", kind, ("x",), attrs)], "y")
    return graph.by_name["y"].shape


def test_tokens_of_an_image_become_rows_of_pixels_whose_channels_are_held_fast():
    assert shape("channels_first", {"rows": 2}, (6, 5, 8)) == (3, 8, 2, 5)
    graph = OpGraph.build("net", [Op("x", "input", attrs={"shape": (2, 5, 8)}), Op("y", "channels_first", ("x",), {"rows": 2})], "y")
    groups = channel_groups(graph)
    assert groups.pieces["y"][0][0] in groups.frozen


@pytest.mark.parametrize(
    ("kind", "attrs", "read"),
    [
        ("rearrange", {"split": (4, 5), "order": (0, 1), "pixels": (4, 6)}, (1, 3, 4, 6)),
        ("rearrange", {"split": (4, 6), "order": (0, 0), "pixels": (4, 6)}, (1, 3, 4, 6)),
        ("rearrange", {"split": (4, 6), "order": (1, 0), "pixels": (4, 7)}, (1, 3, 4, 6)),
        ("roll", {"shift": (4, 0)}, (1, 3, 4, 6)),
        ("subsample", {"start": (0, 0), "stop": (5, 6), "step": (1, 1)}, (1, 3, 4, 6)),
        ("subsample", {"start": (0, 0), "stop": (4, 6), "step": (0, 1)}, (1, 3, 4, 6)),
        ("channels_first", {"rows": 4}, (6, 5, 8)),
    ],
)
def test_what_does_not_fit_is_refused(kind, attrs, read):
    with pytest.raises(StretchError, match="does not fit"):
        shape(kind, attrs, read)
