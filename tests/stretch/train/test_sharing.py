import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples

torch = pytest.importorskip("torch")

from predictors.errors import StretchError  # noqa: E402 - torch may be missing
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign  # noqa: E402
from stretch.planning.design.scale import scaled_graph  # noqa: E402
from stretch.planning.network.segments import split_segments  # noqa: E402
from stretch.train.sharing import Sharing, envelope  # noqa: E402
from tests.stretch.designs import whole  # noqa: E402
from tests.stretch.train.supernets import design, pool  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("model", ["tiny_bottleneck", "tiny_mobilenet"])
def test_positions_have_the_shapes_of_the_branched_network_and_occur_once(captured, model):
    from stretch.transform import BranchedModel

    network = captured(model)
    from stretch.planning.network.segments import split_segments
    from tests.stretch.train.supernets import part, whole

    parts = [
        part(s, (s.min_depth, s.width), (s.depth, s.width), "project") if s.branchable else whole(s) for s in split_segments(network.graph)
    ]
    wanted = BranchDesign(network.graph.name, "test", tuple(parts))
    positions = Sharing(network, [wanted]).positions(wanted)
    parameters = dict(BranchedModel(network.graph, wanted).named_parameters())
    assert {name: tuple(p.shape) for name, p in parameters.items()} == {name: tuple(p.shape) for name, p in positions.items()}
    every = torch.cat([p.flatten() for p in positions.values()])
    assert len(every.unique()) == len(every)


ratios = st.tuples(st.integers(1, 3), st.sampled_from((0.25, 0.5, 1.0)))


@pytest.mark.slow
@settings(max_examples=examples(8))
@given(ratios, ratios)
def test_narrower_and_shallower_branch_uses_a_part_of_the_wider_deeper_one(captured, one, other):
    network = captured("tiny_resnet")
    small = (min(one[0], other[0]), min(one[1], other[1]))
    large = (max(one[0], other[0]), max(one[1], other[1]))
    designs = [design(network.graph, size, (2, 1.0)) for size in (small, large)]
    sharing = Sharing(network, designs)
    inner, outer = (sharing.positions(d) for d in designs)
    for name, positions in inner.items():
        # An entry is there only where the trunk is narrower than what arrives; joins answer for shares of their own.
        if name in outer and "join_conv" not in name:
            assert set(positions.flatten().tolist()) <= set(outer[name].flatten().tolist())


def test_envelope_holds_every_design_of_a_pool(captured):
    graph = captured("tiny_resnet").graph
    designs = pool(graph)
    most, least = envelope(designs, max), envelope(designs, min)
    macs = [scaled_graph(graph, d).macs for d in designs]
    assert scaled_graph(graph, least).macs <= min(macs)
    assert max(macs) <= scaled_graph(graph, most).macs


def test_designs_that_cannot_share_weights_are_refused(captured):
    network = captured("tiny_resnet")
    designs = pool(network.graph)
    with pytest.raises(StretchError, match="at least one design"):
        Sharing(network, [])
    with pytest.raises(StretchError, match="another join"):
        Sharing(network, [designs[0], design(network.graph, (1, 1.0), (2, 1.0), "sum")])
    with pytest.raises(StretchError, match="wider on cpu"):
        Sharing(network, [design(network.graph, (1, 1.5), (1, 1.0))])
    merged = BranchDesign(designs[0].model, "test", designs[0].segments[:-1])
    with pytest.raises(StretchError, match="different points"):
        Sharing(network, [designs[0], merged])


def test_design_outside_the_supernet_is_refused(captured):
    network = captured("tiny_resnet")
    sharing = Sharing(network, [design(network.graph, (1, 1.0), (2, 1.0))])
    with pytest.raises(StretchError, match="no weights"):
        sharing.positions(design(network.graph, (3, 1.0), (3, 1.0)))


def test_bands_of_rows_are_refused_in_a_supernet(captured):
    graph = captured("tiny_resnet").graph
    segment = next(s for s in split_segments(graph) if s.name == "s1")
    bands = tuple(BranchScale(p, segment.depth, segment.width, rows=rows) for p, rows in (("cpu", (0, 9)), ("gpu", (9, 32))))
    parts = [SegmentDesign("s1", s.start, s.end, bands, "rows") if s.name == "s1" else whole(s) for s in split_segments(graph)]
    with pytest.raises(StretchError, match="segment `s1` joins by `rows`: such branches are the original in parts") as caught:
        Sharing(captured("tiny_resnet"), [BranchDesign(graph.name, "test", tuple(parts))])
    assert caught.value.hint == "let it stay whole in the designs of a supernet"
