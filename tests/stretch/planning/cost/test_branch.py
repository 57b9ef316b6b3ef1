"""Costs of branches, bands and their halos against the operators that are built for them."""

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.devices import SlowdownFactors, load_device
from predictors.errors import StretchError
from predictors.predictor import LatencyPredictor
from stretch.planning.cost.branch import Costs
from stretch.planning.design.branch_design import BranchScale, SegmentDesign
from stretch.planning.design.scale import legal_widths, scale_branch
from stretch.planning.divisions.rows import DIVISION, BandCosts, band_graph, bands_of, cuts_itself, handed_over_graph
from stretch.planning.network.segments import clean_cuts, cut_segment, divide, split_segments
from tests.predictors.networks import Net, efficientnet, efficientnet_b5, resnet50, small_resnet
from tests.predictors.specified import specified

MI9 = LatencyPredictor(specified("mi9"))
COSTS = Costs(MI9, {"cpu": "int8", "gpu": "fp16", "dsp": "int8"})
STAGES = [s for graph in (resnet50(), efficientnet_b5(), small_resnet()) for s in split_segments(graph) if s.branchable]


def built(segment, processor, depth, width, entry, channels, join="concat", partition=0):
    scale = BranchScale(processor, depth, width, entry, partition, COSTS.align(processor))
    others = (BranchScale("other", depth, width, entry, segment.width - partition),) if partition else ()
    return scale_branch(segment, SegmentDesign(segment.name, segment.start, segment.end, (scale, *others), join), 0, channels).graph


@given(st.data(), st.sampled_from(STAGES), st.sampled_from(["cpu", "gpu", "dsp"]), st.booleans())
def test_branch_costs_the_same_as_its_built_operators_for_any_input_channels(data, segment, processor, other):
    width = data.draw(st.sampled_from(legal_widths(segment, COSTS.align(processor))))
    channels = data.draw(st.integers(1, 2 * segment.in_width)) if other and segment.dense_input else None
    depth = segment.depth if channels else data.draw(st.integers(segment.min_depth, segment.depth))
    cost = COSTS.branch(segment, processor, depth, width, *([channels] if channels else []))
    graph = built(segment, processor, depth, width, cost.entry, channels or segment.in_width)
    assert (cost.macs, cost.params) == (graph.macs, graph.params)
    assert cost.time == pytest.approx(MI9.predict(graph, processor).computing)


@pytest.mark.parametrize("processor", ["cpu", "gpu", "dsp"])
def test_join_convolution_costs_the_same_as_its_built_operator(processor):
    segment = STAGES[2]
    graph = built(segment, processor, 4, 512, "none", segment.in_width, "project", 256)
    branch = COSTS.branch(segment, processor, 4, 512)
    slowing = SlowdownFactors(1.25, 1.5)
    ((macs, ms, params),) = COSTS.join_convs(segment, processor, [(512, 256)], slowing)
    assert (branch.macs + macs, branch.params + params) == (graph.macs, graph.params)
    assert branch.time.slowed(slowing) + ms == pytest.approx(MI9.predict(graph, processor).computing.slowed(slowing))


def test_concatenation_is_free_if_channels_are_the_slowest_axis_and_a_copy_otherwise():
    host = Costs(LatencyPredictor(load_device("host")), {"cpu": "fp32", "gpu": "fp32"})
    segment = STAGES[0]
    assert host.join(segment, "project", segment.width, 2) == 0
    assert host.join(segment, "sum", segment.width, 2) > 0
    assert COSTS.join(segment, "project", segment.width, 2) > 0
    assert COSTS.join(segment, "sum", segment.width, 3) > COSTS.join(segment, "sum", segment.width, 2)
    assert COSTS.join(segment, "none", segment.width, 1) == 0


def test_transfer_is_costed_in_the_precision_of_the_processor_other_than_the_cpu():
    links, elements = MI9.links, 10**6
    assert COSTS.transfer("cpu", "gpu", elements) == links.ms("cpu", "gpu", elements, "fp16")
    assert COSTS.transfer("dsp", "cpu", elements) == links.ms("dsp", "cpu", elements, "int8")


def odd():
    """A network with strides that do not divide its rows, dilation, one-sided padding, pooling, upsampling and a skip over several rows."""
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
    """A network with a part whose last rows are only padding, as after an explicit pad before pooling."""
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
    return graph, BandCosts(COSTS, [part for stage in stages for part in divide(graph, stage, clean, name == "padded")])


@given(st.data(), st.sampled_from(sorted(GRAPHS)), st.sampled_from(["cpu", "gpu", "dsp"]))
def test_band_costs_the_same_as_its_built_operators(data, name, processor):
    graph, bands = banded(name)
    tall = [i for i, part in enumerate(bands.parts) if len(part.graph.by_name[part.end].shape) == 4]
    last = data.draw(st.sampled_from(tall))
    first = data.draw(st.integers(max(0, last - 4), last))
    rows = bands.parts[last].graph.by_name[bands.parts[last].end].shape[2]
    start = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(start + 1, rows))
    band = bands.band(first, last, start, stop)
    run = cut_segment(graph, "run", bands.parts[first].start, bands.parts[last].end)
    try:
        whole = band_graph(run.graph, "band", start, stop)
    except StretchError:
        assert band is None
        return
    assert band is not None
    (cost,) = bands.cost(processor, [band])
    built = handed_over_graph(whole)
    if name != "padded":  # its parts are cut between a pad and the convolution that fuses it, so kernels span two parts
        estimate = MI9.predict(built, processor)
        assert cost.time == pytest.approx(estimate.computing)
        cut = MI9.predict(whole, processor).computing if cuts_itself(processor, processor, MI9) else cost.time
        assert [a + b for a, b in zip(cost.time, cost.cut, strict=True)] == pytest.approx(list(cut))
    assert cost.macs == built.macs
    shape, rows = run.graph.input.shape, bands_of(run.graph, start, stop)[0][run.start]
    assert cost.reads == shape[0] * shape[1] * len(rows) * shape[3]
    shape = whole.by_name[whole.output].shape
    assert cost.writes == shape[0] * shape[1] * (stop - start) * shape[3]


@cache
def chain(kernels, skip=False):
    """A chain of convolutions of the given kernel sizes, optionally with a skip over the last."""
    net = Net(1, 8, 32, 16)
    arrives = [net.conv(8, kernel) for kernel in kernels]
    if skip:
        net.add("add", arrives[-1], arrives[-2])
    return net.graph("chain")


@given(
    st.lists(st.sampled_from([1, 3, 5]), min_size=2, max_size=5),
    st.booleans(),
    st.lists(st.integers(1, 31), min_size=1, max_size=2, unique=True),
)
def test_repeated_time_is_the_time_of_rows_that_several_bands_need(kernels, skip, places):
    """Mark the rows of every operator one by one: rows beyond their union are computed more than once."""
    graph, bounds = chain(tuple(kernels), skip), [0, *sorted(places), 32]
    graphs = [band_graph(graph, "band", start, stop) for start, stop in pairwise(bounds)]
    bands = [(band, MI9.predict(band, p), 1.0) for band, p in zip(graphs, ("cpu", "gpu", "dsp"), strict=False)]
    needed_rows = [bands_of(graph, start, stop)[0] for start, stop in pairwise(bounds)]
    expected = 0.0
    for _, estimate, _ in bands:
        for kernel in estimate.kernels:
            main = next((name for name in kernel.kernel.ops if name in graph.by_name), None)
            if main is None:
                continue
            marked = [set(range(band_rows[main].start, band_rows[main].stop)) for band_rows in needed_rows]
            count, union = sum(map(len, marked)), len(set.union(*marked))
            expected += kernel.time.ms * (count - union) / count
    assert DIVISION.repeated_ms(graph, bands) == pytest.approx(expected)


@pytest.mark.parametrize("holder", ["cpu", "cpu[1large]", "gpu", "dsp"])
@pytest.mark.parametrize("processor", ["cpu", "gpu", "dsp"])
def test_rows_are_copied_only_without_a_transfer_and_if_they_are_not_contiguous(holder, processor):
    assert cuts_itself(holder, processor, MI9) is (holder == processor == "gpu")
