import pytest
import torch

from stretch.evaluation.sensitivity.blocks import BlockLosses
from stretch.network.capture import capture
from stretch.network.models.tiny import BasicBlock, SmallResNet
from stretch.planning.network.segments import split_segments
from tests.stretch.designs import cpu_and, without_blocks
from tests.stretch.pictures import coloured


@torch.no_grad()
def test_loss_is_the_squared_error_over_the_square_without_the_block_and_that_of_a_useless_block_is_zero():
    network = SmallResNet(BasicBlock, (8, 16), 4).eval()
    torch.nn.init.zeros_(network.stages[1][2].bn2.weight)
    captured = capture(network, (1, 3, 32, 32), "small")
    images = torch.from_numpy(coloured(20))
    design = cpu_and("gpu", captured.graph, "project")
    want = network(images)
    measure = BlockLosses(captured, images.split(7))
    for segment in split_segments(captured.graph):
        losses = measure(design, segment)
        assert list(losses) == ([1, 2, 3] if segment.branchable else [])
        for number, loss in losses.items():
            got = without_blocks(network, segment, [number])(images)
            assert loss == pytest.approx(float((got - want).square().sum() / want.square().sum()), rel=1e-3)
            assert (loss == 0) == ((segment.name, number) == ("s2", 2))
