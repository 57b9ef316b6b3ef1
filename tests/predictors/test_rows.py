"""Which rows operators read."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from predictors.graph import Op, OpGraph
from predictors.rows import Rows, height, window_rows
from tests.effort import examples
from tests.scheduler.delegates.graphs import KIND_NAMES, graphs

WINDOW = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1)}
IMAGE = [(1, 4, 9, 9)]


@pytest.mark.parametrize(
    ("rows", "reads", "above", "below"), [(Rows(0, 2), Rows(0, 4), 1, 0), (Rows(2, 3), Rows(3, 6), 0, 0), (Rows(3, 5), Rows(5, 9), 0, 1)]
)
def test_window_reads_its_halo_and_pads_only_where_the_image_ends(rows, reads, above, below):
    band = window_rows(IMAGE, WINDOW, rows)
    assert band.reads == (reads,)
    assert band.attrs["padding"] == (above, 1, below, 1)


def close(actual, expected):
    """Equal as sums of float32 in any order are: relative to the largest value, since large terms may cancel."""
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * max(1, np.abs(expected).max(initial=0)))


def test_window_within_the_padding_reads_no_row():
    band = window_rows(IMAGE, WINDOW | {"padding": (6, 1, 0, 1)}, Rows(0, 1))
    assert band.reads == (Rows(0, 0),)
    assert band.attrs["padding"] == (3, 1, 0, 1)


@pytest.mark.parametrize(("kernel", "dilation", "reads", "skip"), [(2, 1, Rows(14, 17), 1), (3, 2, Rows(12, 17), 2)])
def test_windows_that_the_last_row_cuts_short_are_computed_behind_one_that_fits(kernel, dilation, reads, skip):
    short = {"kernel": (kernel, kernel), "stride": (2, 2), "dilation": (dilation, 1), "padding": (0, 0, 0, 0), "ceil_mode": True}
    band = window_rows([(1, 4, 17, 17)], short, Rows(8, 9))
    assert (band.reads, band.skip, band.attrs["padding"]) == ((reads,), skip, (0, 0, 0, 0))
    assert window_rows([(1, 4, 17, 17)], short, Rows(0, 9)).skip == 0


@pytest.mark.torch
@pytest.mark.parametrize("kind", KIND_NAMES)
@settings(max_examples=examples(12))
@given(data=st.data())
def test_band_computed_from_its_rows_is_the_band_of_the_whole(kind, data):
    torch = pytest.importorskip("torch")
    from stretch.operators.lowerings import make_module

    graph, weights, x = data.draw(graphs(kind))
    op = graph.by_name["y"]
    start = data.draw(st.integers(0, height(op.shape) - 1))
    stop = data.draw(st.integers(start + 1, height(op.shape)))
    band = graph.op_rows(op, start, stop)
    values = _values(graph, weights, x)
    parts = [
        values[name][:, :, rows.start : rows.stop] if values[name].ndim == 4 else values[name]
        for name, rows in zip(op.inputs, band.reads, strict=True)
    ]
    assume(all(0 not in part.shape for part in parts))
    got = _loaded(make_module(Op("y", kind, op.inputs, band.attrs), [part.shape for part in parts]), weights.get("y", {}))
    with torch.inference_mode():
        built = got(*[torch.from_numpy(np.ascontiguousarray(part)) for part in parts]).numpy()
    if built.ndim == 4:
        built = built[:, :, band.skip : band.skip + stop - start]
        close(built, values["y"][:, :, start:stop])
    else:
        close(built, values["y"])


def _loaded(module, weights):
    import torch

    named_parameters = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for key, value in weights.items():
            named_parameters[key].copy_(torch.from_numpy(value))
    return module.eval()


def _values(graph: OpGraph, weights, x):
    """What every operator computes, whole."""
    import torch

    from stretch.operators.lowerings import make_module

    values = {graph.input.name: x}
    with torch.inference_mode():
        for op in graph.ops[1:]:
            module = _loaded(make_module(op, graph.input_shapes(op)), weights.get(op.name, {}))
            values[op.name] = module(*[torch.from_numpy(np.ascontiguousarray(values[name])) for name in op.inputs]).numpy()
    return values
