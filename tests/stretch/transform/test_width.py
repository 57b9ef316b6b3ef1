import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch may be missing

from stretch.capture.runnable import capture_runnable  # noqa: E402
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign  # noqa: E402
from stretch.planning.design.scale import scaled_graph  # noqa: E402
from stretch.planning.network.segments import cut_segment  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.width import Trunk  # noqa: E402
from tests.stretch.capture.patterns import CHANNELS, SIDE, Attention, Last, Windows  # noqa: E402

pytestmark = pytest.mark.torch


def test_channels_that_stand_for_the_same_original_share_it():
    trunk = Trunk.of(torch.tensor([0, 1, 1, 2, 1]))
    assert trunk.share.tolist() == pytest.approx([1, 1 / 3, 1 / 3, 1, 1 / 3])


def test_shares_of_every_original_channel_add_up_to_one():
    index = torch.randint(0, 20, (100,), generator=torch.Generator().manual_seed(0))
    trunk = Trunk.of(index)
    sums = torch.zeros(20).index_add_(0, trunk.index, trunk.share)
    assert sums[index.unique()].tolist() == pytest.approx([1.0] * len(index.unique()))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [Attention, Windows, Last])
def test_stage_before_operators_of_fixed_channels_is_stretched_and_they_keep_all_their_weights(pattern):
    wide = 4 * CHANNELS
    front = nn.Sequential(nn.Conv2d(3, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(), nn.Conv2d(wide, CHANNELS, 1))
    torch.manual_seed(0)
    module = nn.Sequential(front, pattern(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 5)).eval()
    captured = capture_runnable(module, (1, 3, SIDE, SIDE), "net")
    graph = captured.graph
    ends = [cut_segment(graph, name, *between) for name, between in (("s1", ("input", "0_3")), ("head", ("0_3", graph.output)))]
    narrow = BranchScale("cpu", ends[0].depth, CHANNELS // 2, partition=CHANNELS // 2, align=1)
    full = BranchScale("gpu", ends[0].depth, CHANNELS, partition=CHANNELS // 2, align=1)
    stretched = SegmentDesign("s1", "input", "0_3", (narrow, full), "project")
    head = SegmentDesign("head", "0_3", graph.output, (BranchScale("cpu", ends[1].depth, ends[1].width),))
    design = BranchDesign("net", "any", (stretched, head))
    model = build(captured, design)
    with torch.no_grad():
        assert model(torch.randn(3, 3, SIDE, SIDE)).shape == (3, 5)
        # behind the stretched stage nothing is another network's
        x = torch.randn(2, CHANNELS, SIDE, SIDE)
        assert torch.allclose(model.segment("head")(x), module[1:](x), atol=1e-5)
    assert capture_runnable(model, (1, 3, SIDE, SIDE), "again").graph.macs == scaled_graph(graph, design).macs < graph.macs * 1.5
