import pytest

torch = pytest.importorskip("torch")

from stretch.transform import build  # noqa: E402 - torch may be missing
from stretch.transform.calibrate.walk import trunk_of, walk  # noqa: E402
from tests.stretch.designs import cpu_and  # noqa: E402

pytestmark = pytest.mark.torch


def images(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def segment(captured):
    found = captured("tiny_resnet")
    design = cpu_and("gpu", found.graph, "sum")
    part = next(s for s in design.segments if not s.whole)
    return build(found, design).get_submodule(part.name), found.graph.by_name[part.start].shape[1:]


def test_trunks_through_their_joins_are_the_segment(segment):
    module, shape = segment
    x = images(3, *shape)
    with torch.no_grad():
        parts = [branch.join_conv(trunk_of(branch, x)) for branch in list(module.children())[:2]]
        torch.testing.assert_close(module.join(*parts), module(x))


def test_every_operator_is_visited_once_before_it_computes(segment):
    module, shape = segment
    batches = [images(3, *shape), images(2, *shape, seed=1)]
    branch, seen = next(module.children()), []

    def visit(name, layer, reads, values):
        assert layer is branch.get_submodule(name)
        assert name not in values
        assert [len(x) for x in reads[0]] == [3, 2]
        seen.append(name)

    with torch.no_grad():
        outputs = walk(branch, batches, visit)
        assert all(torch.equal(got, trunk_of(branch, x)) for got, x in zip(outputs, batches, strict=True))
    assert seen == [name for name, _, _ in branch.steps if name != "join_conv"]
