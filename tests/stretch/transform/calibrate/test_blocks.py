import pytest

torch = pytest.importorskip("torch")

from predictors.joins import join_of  # noqa: E402 - torch may be missing
from stretch.capture import capture  # noqa: E402
from stretch.models.small_resnet import BasicBlock, SmallResNet  # noqa: E402
from stretch.planning.design.branch_design import BranchScale, SegmentDesign  # noqa: E402
from stretch.planning.design.depth import drop_units  # noqa: E402
from stretch.planning.network.segments import split_segments  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.calibrate.blocks import choose_blocks, output_without  # noqa: E402
from tests.stretch.designs import identity_design  # noqa: E402

pytestmark = pytest.mark.torch

#: Blocks of a stage; of each, by how much the last batch norm is scaled: those with little add little.
BLOCKS = 5


def network(scales):
    """A network whose second stage's blocks add more or less."""
    torch.manual_seed(0)
    net = SmallResNet(BasicBlock, (8, 16, 16), BLOCKS).eval()
    found = capture(net, (1, 3, 32, 32), "net")
    segment = next(s for s in split_segments(found.graph) if s.name == "s2")
    with torch.no_grad():
        for block, scale in zip(segment.blocks, scales, strict=True):
            last = [name for name in block.ops if segment.graph.by_name[name].kind == "batch_norm"][-1]
            found.weights[last]["weight"].mul_(scale)
    return found, segment


def module_of(found, segment):
    return build(found, identity_design(found.graph)).branch(segment.name, "cpu")


def arriving(segment):
    return torch.randn(20, *segment.graph.input.shape[1:], generator=torch.Generator().manual_seed(1))


def design_of(segment, depths, join):
    processors = ("cpu", "gpu")[: len(depths)]
    partition = segment.width // 2 if join_of(join).divides else 0
    branches = tuple(BranchScale(p, depth, segment.width, partition=partition) for p, depth in zip(processors, depths, strict=True))
    return SegmentDesign(segment.name, segment.start, segment.end, branches, join)


def chosen(found, segment, depths, join):
    sources = [drop_units(segment, depth) for depth in depths]
    with torch.no_grad():
        return choose_blocks(
            design_of(segment, depths, join), segment, sources, module_of(found, segment), arriving(segment).split(7), 1e-4
        )


def reproduced(segment, matches, depth):
    """Numbers of the blocks that a branch reproduces."""
    own = [i for i, block in enumerate(segment.blocks) if block.ops[0] in drop_units(segment, depth).by_name]
    at = {block.ops[0]: i for i, block in enumerate(segment.blocks)}
    return [at[matches.get(segment.blocks[i].ops[0], segment.blocks[i].ops[0])] for i in own]


def test_blocks_that_add_little_are_left_out_and_the_entry_block_stays():
    found, segment = network([1e-3, 1, 1e-3, 1e-3, 1])
    assert not segment.blocks[0].removable
    (matches,) = chosen(found, segment, [3], "none")
    assert reproduced(segment, matches, 3) == [0, 1, 4]


@pytest.mark.parametrize("join", ["sum", "project"])
def test_branches_that_are_added_up_complement_each_other(join):
    """Each may keep one block; the first takes the one that matters most, the second another where both are read together."""
    found, segment = network([1, 1e-3, 2, 1e-3, 1.5])
    first, second = (reproduced(segment, m, 2) for m in chosen(found, segment, [2, 2], join))
    assert first[0] == second[0] == 0
    assert {first[1], second[1]} <= {2, 4}
    if join == "sum":
        assert first != second


@pytest.mark.representatives(3)
@pytest.mark.parametrize("gone", [[], [1], [4], [1, 2, 4], [1, 2, 3, 4]])
def test_output_without_blocks_is_that_of_a_network_built_without_them(gone):
    found, segment = network([1] * BLOCKS)
    module, x = module_of(found, segment), arriving(segment)
    with torch.no_grad():
        got = output_without(module, [segment.blocks[i] for i in gone], x)
        value = x
        for i, block in enumerate(segment.blocks):
            if i in gone:
                continue
            values = {block.start if i == 0 else "in": value}
            for name, reads, _ in module.steps:
                if name in block.ops:
                    values[name] = module.get_submodule(name)(*(values.get(r, value) for r in reads))
            value = values[block.ops[-1]]
    torch.testing.assert_close(got, value)
