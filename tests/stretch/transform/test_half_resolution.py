"""A branch at half resolution equals the original on means of 2×2 pixels, and may have twice the channels."""

import copy

import pytest
import torch
import torch.nn.functional as F

from predictors.rewrites import HALF_RESOLUTION
from stretch.network.capture import capture
from stretch.network.models.load import load_model
from stretch.planning.config import PlanConfig
from stretch.planning.design.branch_design import BranchScale
from stretch.planning.design.scale import scaled_graph
from stretch.planning.network.segments import rewrite_segment, split_segments
from stretch.planning.plan import plan
from stretch.transform import build
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.designs import divided, part_of

HALF = (HALF_RESOLUTION,)


def last_stage(graph):
    return next(segment for segment in split_segments(graph) if segment.branchable and rewrite_segment(segment, HALF) is not segment)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "reader"), [("resnet18", "layer4"), ("tiny_resnet", "stages.2"), ("densenet121", "features.transition3.conv")]
)
def test_branch_of_all_channels_is_the_parent_that_averages_what_its_last_stage_reads(captured, name, reader):
    result = captured(name)
    segment = last_stage(result.graph)
    scale = BranchScale("cpu", segment.depth, segment.width, rewrites=HALF)
    model = build(result, divided(result.graph, part_of(segment, "none", [scale])))
    parent = copy.deepcopy(result.module).eval()
    parent.get_submodule(reader).register_forward_pre_hook(lambda module, args: F.avg_pool2d(args[0], 2))
    x = torch.randn(2, *result.graph.input.shape[1:], generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(x), parent(x))


def test_stage_whose_result_has_rows_keeps_its_resolution():
    first = split_segments(small_resnet())[1]
    assert rewrite_segment(first, HALF) is first


def test_planner_gives_the_branch_up_to_twice_the_channels_and_the_plan_says_so():
    graph = capture(load_model("resnet20_cifar10", weights="none").module, (1, 3, 256, 256), "resnet20").graph
    config = PlanConfig(processors=("cpu", "gpu"), merge="always", alpha=100.0, rewrite=("gpu:resolution=half",))
    result = plan(graph, specified("pixel6"), config)
    halves = [b for part in result.design.segments if len(part.branches) > 1 for b in part.branches if b.rewrites == HALF]
    assert {b.processor for b in halves} == {"gpu"}
    stage = last_stage(graph)
    assert all(b.width <= 2 * stage.width for b in halves)
    assert scaled_graph(graph, result.design).macs == result.run.macs
    assert any("resolution=half on gpu" in str(warning) for warning in result.warnings)
