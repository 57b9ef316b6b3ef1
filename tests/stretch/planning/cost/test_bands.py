"""Bands of rows cost what the operators that compute them cost."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from predictors.predictor import LatencyPredictor
from stretch.planning.cost.bands import BandCosts, BandKey
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.handover import cuts_itself, handed
from stretch.planning.design.bands import band_graph, needed_rows
from stretch.planning.network.parts import clean_cuts, divide
from stretch.planning.network.segments import cut_segment, split_segments
from tests.predictors.networks import Net, efficientnet, resnet50, small_resnet
from tests.predictors.specified import specified

MI9 = LatencyPredictor(specified("mi9"))
COSTS = Costs(MI9, {"cpu": "int8", "gpu": "fp16", "dsp": "int8"})


def odd():
    """Strides that do not divide, dilation, padding on one side, pooling, upsampling and a skip over several rows."""
    net = Net(1, 3, 37, 21)
    net.conv(8, 3, 2)
    net.add("conv", out_channels=8, groups=1, bias=True, kernel=(5, 3), stride=(2, 1), padding=(1, 1, 3, 1), dilation=(2, 1))
    start = net.conv(8, 1)
    net.conv(8, 5)
    net.add("add", net.conv(8, 3, act=None), start)
    net.add("max_pool", kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1), ceil_mode=True)
    net.add("upsample", scale=(2, 2), mode="nearest")
    net.conv(16, 3)
    net.head(5)
    return net.graph("odd")


def padded():
    """Rows of padding alone at the end of a part, as pooling over an image that was padded by hand has them."""
    net = Net(1, 3, 24, 24)
    net.conv(8, 3, 2)
    net.add("pad", padding=(2, 0, 1, 1))
    net.add("max_pool", kernel=(2, 2), stride=(1, 1), padding=(0, 0, 0, 0))
    net.conv(8, 3)
    net.add("pad", padding=(0, 0, 2, 0))
    net.conv(16, 3)
    net.head(5)
    return net.graph("padded")


GRAPHS = {
    "bottlenecks": small_resnet(),
    "deep": resnet50(96),
    "inverted": efficientnet([(1, 3, 1, 16, 1), (4, 3, 2, 24, 2), (4, 5, 2, 40, 2)], 16, 64, 48, se=False, act="relu6"),
    "gated": efficientnet([(1, 3, 1, 16, 1), (4, 3, 2, 24, 2)], 16, 64, 32, se=True, act="silu"),
    "odd": odd(),
    "padded": padded(),
}


@cache
def banded(name):
    graph = GRAPHS[name]
    clean = clean_cuts(graph, [MI9.kernels(graph, p) for p in ("cpu", "gpu", "dsp")])
    stages = split_segments(graph)
    return graph, BandCosts(COSTS, [part for stage in stages for part in divide(graph, stage, clean, every=name == "padded")])


@given(st.data(), st.sampled_from(sorted(GRAPHS)), st.sampled_from(["cpu", "gpu", "dsp"]))
def test_band_costs_what_its_built_operators_cost(data, name, processor):
    graph, bands = banded(name)
    tall = [i for i, part in enumerate(bands.parts) if len(part.graph.by_name[part.end].shape) == 4]
    last = data.draw(st.sampled_from(tall))
    first = data.draw(st.integers(max(0, last - 4), last))
    start = data.draw(st.integers(0, bands.rows(last) - 1))
    stop = data.draw(st.integers(start + 1, bands.rows(last)))
    cost = bands.band(BandKey(first, last, processor, start, stop))
    run = cut_segment(graph, "run", bands.parts[first].start, bands.parts[last].end)
    try:
        whole = band_graph(run.graph, "band", start, stop)
    except StretchError:
        assert cost is None
        return
    assert cost is not None
    built = handed(whole)
    estimate = MI9.predict(built, processor)
    assert (cost.ms, cost.contended_ms) == (pytest.approx(estimate.computing_ms), pytest.approx(estimate.contended_ms))
    cut = MI9.predict(whole, processor).contended_ms if cuts_itself(processor, processor, MI9) else cost.contended_ms
    assert cost.contended_ms + cost.cut_ms == pytest.approx(cut)
    assert cost.macs == built.macs
    shape, rows = run.graph.input.shape, needed_rows(run.graph, start, stop)[run.start]
    assert cost.reads == shape[0] * shape[1] * len(rows) * shape[3]
    shape = whole.by_name[whole.output].shape
    assert cost.writes == shape[0] * shape[1] * (stop - start) * shape[3]


def test_blocks_that_are_built_alike_share_their_costs():
    _, bands = banded("deep")
    assert len({id(part) for part in bands._parts}) < len(bands.parts) - 5
