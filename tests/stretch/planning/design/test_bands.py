import pytest

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.rows import Rows
from stretch.planning.design.bands import ENTRY_ROWS, band_graph, needed_rows

CONV = {"out_channels": 4, "kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1, "bias": True}


def chain(*ops, shape=(1, 4, 12, 6)):
    return OpGraph.build("net", [Op("x", "input", attrs={"shape": shape}), *ops], ops[-1].name)


def two_convolutions():
    return chain(Op("a", "conv", ("x",), CONV), Op("b", "conv", ("a",), CONV))


def test_halo_grows_by_a_row_with_each_convolution_of_three_rows():
    assert needed_rows(two_convolutions(), 4, 8) == {"b": Rows(4, 8), "a": Rows(3, 9), "x": Rows(2, 10)}


def test_band_pads_where_the_image_ends_and_reads_its_halo_elsewhere():
    top = band_graph(two_convolutions(), "top", 0, 5)
    assert [(op.name, op.kind) for op in top.ops] == [("x", "input"), (ENTRY_ROWS, "slice_rows"), ("a", "conv"), ("b", "conv")]
    assert dict(top.by_name[ENTRY_ROWS].attrs) == {"start": 0, "stop": 7}
    assert [top.by_name[name].attrs["padding"] for name in "ab"] == [(1, 1, 0, 1)] * 2
    assert top.by_name[top.output].shape == (1, 4, 5, 6)


def test_skip_reads_fewer_rows_than_the_convolution_beside_it():
    graph = chain(Op("a", "conv", ("x",), CONV), Op("b", "conv", ("a",), CONV), Op("y", "add", ("b", "a")))
    band = band_graph(graph, "band", 4, 8)
    assert band.by_name["y"].inputs == ("b", "y_rows1")
    assert dict(band.by_name["y_rows1"].attrs) == {"start": 1, "stop": 5}


def test_copies_that_nobody_needs_are_cut_off():
    graph = chain(Op("up", "upsample", ("x",), {"scale": (3, 1)}), Op("y", "relu", ("up",)))
    band = band_graph(graph, "band", 4, 8)
    assert dict(band.by_name[ENTRY_ROWS].attrs) == {"start": 1, "stop": 3}
    assert dict(band.by_name["up_band"].attrs) == {"start": 1, "stop": 5}


def test_pooled_vector_needs_every_row_and_stays_as_it_is():
    graph = chain(Op("a", "conv", ("x",), CONV), Op("mean", "global_avg_pool", ("a",), {"keepdims": True}), Op("y", "mul", ("a", "mean")))
    assert needed_rows(graph, 4, 8)["a"] == Rows(0, 12)
    band = band_graph(graph, "band", 4, 8)
    assert dict(band.by_name["y_rows0"].attrs) == {"start": 4, "stop": 8}
    assert band.by_name["y"].inputs == ("y_rows0", "mean")


@pytest.mark.parametrize(("start", "stop"), [(0, 13), (5, 5), (-1, 3)])
def test_rows_that_are_not_there_are_refused(start, stop):
    with pytest.raises(StretchError, match="operator `b` has 12 rows"):
        needed_rows(two_convolutions(), start, stop)


def test_band_within_the_padding_is_refused_naming_the_operator():
    graph = chain(Op("y", "conv", ("x",), CONV | {"padding": (4, 1, 0, 1)}))
    with pytest.raises(StretchError, match=r"rows 0 to 1 of `y` need rows of `y` that lie in its padding alone") as caught:
        needed_rows(graph, 0, 1)
    assert caught.value.hint == "choose higher bands"
