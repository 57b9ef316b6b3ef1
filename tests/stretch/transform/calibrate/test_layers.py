import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch may be missing

from stretch.capture import capture  # noqa: E402
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign  # noqa: E402
from stretch.planning.network.segments import cut_segment  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.build import heritages  # noqa: E402
from stretch.transform.calibrate.layers import BranchFit, look, tail_of  # noqa: E402
from stretch.transform.calibrate.run import whole_design  # noqa: E402

pytestmark = pytest.mark.torch


class Residual(nn.Module):
    def __init__(self, groups=1):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=groups)

    def forward(self, x):
        x = self.norm(self.first(x))
        return x + self.second(torch.relu(x))


def fitted(module, arriving, original, spoil=None):
    """The module's one segment, fitted on `arriving` to what it computes on `original`."""
    found = capture(module.eval(), tuple(original[0].shape), "residual")
    last = found.graph.output
    segment = cut_segment(found.graph, "s1", found.graph.input.name, last)
    scale = (BranchScale("cpu", segment.depth, segment.width),)
    design = BranchDesign("residual", "test", (SegmentDesign("s1", found.graph.input.name, last, scale),))
    model = build(found, design)
    branch, whole = model.branch("s1", "cpu"), build(found, whole_design(found, design)).branch("s1", "cpu")
    with torch.no_grad():
        if spoil:
            spoil(branch)
        fit = BranchFit(heritages(found, design)[0][0], branch, {}, sum(len(x) for x in arriving))
        _, told = look(whole, original, len(original), fit.looks)
        outputs = fit.run(arriving, len(arriving), told, 1e-9)
        return branch, whole, torch.cat(outputs)


def images(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_spoilt_weights_are_found_again(groups):
    """With the original's input, dense, grouped and depthwise layers can be exact."""
    torch.manual_seed(0)
    x = [images(16, 3, 8, 8), images(9, 3, 8, 8, seed=1)]

    def spoil(branch):
        for name, parameter in branch.named_parameters():
            if "norm" not in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))

    _, whole, outputs = fitted(Residual(groups), x, x, spoil)
    with torch.inference_mode():
        want = whole(torch.cat(x))
    assert float((outputs - want).square().mean() / want.square().mean()) < 1e-4


def test_last_layer_of_a_block_is_least_squares_of_what_the_skip_leaves():
    torch.manual_seed(1)
    original = images(12, 3, 6, 6)
    arriving = original + 0.5 * images(12, 3, 6, 6, seed=5)
    branch, whole, outputs = fitted(Residual(), [arriving], [original])
    with torch.inference_mode():
        skip = branch.norm(branch.first(arriving))
        rows = nn.functional.unfold(torch.relu(skip), 3, padding=1).mT.reshape(-1, 72)
        rows = torch.cat([rows, torch.ones(len(rows), 1)], 1).double()
        left = (whole(original) - skip).movedim(1, -1).reshape(-1, 8).double()
        expected = rows @ torch.linalg.lstsq(rows, left).solution
        got = (outputs - skip).movedim(1, -1).reshape(-1, 8).double()
    # The share of the penalty that grows with inputs over rows keeps it a little from the optimum.
    least, reached = (expected - left).square().mean(), (got - left).square().mean()
    assert least <= reached < 1.01 * least


def test_tail_ends_at_what_is_not_affine_and_knows_the_addition():
    found = capture(Residual().eval(), (1, 3, 8, 8), "residual")
    ops = {op.kind: op.name for op in found.graph.ops}
    convs = [op.name for op in found.graph.ops if op.kind == "conv"]
    first, second = (tail_of(found.graph, name) for name in convs)
    assert (first.end, first.norm, first.add) == (ops["batch_norm"], ops["batch_norm"], None)
    assert (second.end, second.norm, second.add, second.skip) == (convs[1], None, ops["add"], ops["batch_norm"])


def test_layer_with_more_inputs_than_rows_stays_as_it_was():
    torch.manual_seed(0)
    x = [images(20, 3, 1, 1)]
    branch, whole, _ = fitted(Residual(), [x[0] + 0.1], x)
    # 27 and 72 inputs, 20 rows.
    for name in ("first", "second"):
        assert torch.equal(branch.get_submodule(name).weight, whole.get_submodule(name).weight)


def test_batches_that_are_held_back_are_computed_but_do_not_change_the_fit():
    torch.manual_seed(2)
    x = [images(16, 3, 8, 8), images(9, 3, 8, 8, seed=1)]
    found = capture(Residual().eval(), (1, 3, 8, 8), "residual")
    design = BranchDesign(
        "residual", "test", (SegmentDesign("s1", found.graph.input.name, found.graph.output, (BranchScale("cpu", 1, 8),)),)
    )
    outputs = []
    for spoil in (0.0, 1.0):
        branch, whole = (build(found, design).branch("s1", "cpu") for _ in range(2))
        with torch.no_grad():
            arriving = [x[0] + 0.3, x[1] + spoil]
            fit = BranchFit(heritages(found, design)[0][0], branch, {}, 16)
            targets, told = look(whole, x, 1, fit.looks)
            assert torch.equal(targets[1], whole(x[1]))
            assert all(len(rows) == 1 for rows in told.values())
            outputs.append(fit.run(arriving, 1, told, 1e-9))
            assert torch.equal(branch(arriving[1]), outputs[-1][1])
    assert torch.equal(outputs[0][0], outputs[1][0])
