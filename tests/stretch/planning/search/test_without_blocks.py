"""Designs that drop blocks with measured losses, next to segments that are divided exactly."""

from functools import cache

import pytest
import torch
from torch import nn

from stretch.evaluation.sensitivity.fit import fit
from stretch.network.capture import capture
from stretch.planning.config import PlanConfig
from stretch.planning.cost.accuracy import SEEN_FEATURES, ChangedSegment, Measured
from stretch.planning.plan import plan
from stretch.transform import build
from tests.predictors.specified import specified
from tests.stretch.planning.cost.measured import ON

KINDS, SHAPE = ("stretch", "rows", "channels"), (1, 3, 96, 96)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x):
        return torch.relu(x + self.layers(x))


def layers(without=()):
    """Convolutions and residual blocks of two widths, except the blocks in `without`."""
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 32, 3, padding=1), *(Block(32) for _ in range(3)), nn.Conv2d(32, 64, 3, stride=2, padding=1)]
    parts += [*(Block(64) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*(part for n, part in enumerate(parts) if n not in without)).eval()


@cache
def captured():
    return capture(layers(), SHAPE, "net")


def planned(least, lost, **options):
    """A plan in which dropping a block costs its measured loss (`lost`, by name) and scaled copies lose much."""
    graph = captured().graph
    stages = plan(graph, specified("pixel6"), PlanConfig(processors=("cpu", "gpu"), kinds=("rows",), lossless=True)).stages
    row = (0.0, 0.0, 0.0, -0.5, -0.5, -0.5, 0.7)
    assert len(row) == len(SEEN_FEATURES)
    named = {stage.name: ChangedSegment(stages=(stage.name,), features=row) for stage in stages}
    alone = [Measured(segments=(named[stage.name],), error=0.8, agreement=0.2) for stage in stages if stage.branchable]
    blocks = {
        block.end: Measured(segments=(named[stage.name],), error=lost[name], agreement=1 - lost[name])
        for stage in stages
        for block in stage.blocks
        for name in lost
        if any(op.startswith(f"{name}_") for op in block.ops)
    }
    assert len(blocks) == len(lost)
    source = fit("net", "project", stages, alone, [], ON, blocks)
    config = PlanConfig(processors=("cpu", "gpu"), kinds=KINDS, min_agreement=least, **options)
    return plan(graph, specified("pixel6"), config, source)


def missing(result):
    return [result.run.segments[i].segment.blocks[n].ops for i, part in enumerate(result.design.segments) for n in part.branches[0].dropped]


def test_blocks_of_little_loss_are_dropped_and_the_network_equals_the_original_without_them():
    result = planned(0.9, {"2": 0.03, "7": 0.04, "6": 0.6})
    design = result.design
    assert result.run.makespan_ms < planned(1.0, {"2": 0.03, "7": 0.04}).run.makespan_ms
    assert not result.exact
    assert result.accuracy.agreement >= 0.9
    assert any(not part.whole for part in design.segments)
    x = torch.randn(2, *SHAPE[1:])
    torch.testing.assert_close(build(captured(), design).eval()(x), layers(without=(2, 7))(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("least", "options"), [(1.0, {}), (0.9, {"keep": ("s1", "s2")})])
def test_all_blocks_stay_in_kept_stages_and_if_no_loss_is_allowed(least, options):
    result = planned(least, {"2": 0.03, "7": 0.04}, **options)
    assert result.exact
    assert not missing(result)
