import pytest

torch = pytest.importorskip("torch")

from stretch.planning.design.scale import design_segments  # noqa: E402 - torch may be missing
from stretch.transform import build  # noqa: E402
from stretch.transform.build import heritages  # noqa: E402
from stretch.transform.calibrate import whole_design  # noqa: E402
from stretch.transform.calibrate.segment import Choices, Job  # noqa: E402
from stretch.transform.calibrate.split import Split  # noqa: E402
from tests.stretch.designs import cpu_and  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def job(captured):
    """The first branched segment: three batches, of which the last is held back; only that one is unlike noise of deviation 1."""
    found = captured("tiny_resnet")
    design = cpu_and("gpu", found.graph, "sum")
    number, part = next((i, s) for i, s in enumerate(design.segments) if not s.whole)
    original = design_segments(found.graph, design)[number]
    shape = found.graph.by_name[part.start].shape[1:]
    generator = torch.Generator().manual_seed(0)
    x = [size * torch.randn(16, *shape, generator=generator) for size in (1, 1, 2)]

    def make():
        model, whole = build(found, design), build(found, whole_design(found, design)).branch(part.name, "cpu")
        segment = model.get_submodule(part.name)
        return Job(found, part, original, heritages(found, design)[number], segment, whole, x, x, Split(2, 32, 2), 1e-4)

    return make


@pytest.mark.parametrize("choices", [Choices(), Choices(channels=False, blocks=False)])
def test_error_is_that_of_the_batch_held_back(job, choices):
    one = job()
    with torch.no_grad():
        _, after = one.calibrate(True, choices)
    wrong = (one.outputs[2] - one.targets[2]).square().sum() / one.targets[2].square().sum()
    assert after == pytest.approx(float(wrong), rel=1e-3)
