import pytest

torch = pytest.importorskip("torch")

from stretch.transform import build  # noqa: E402 - torch may be missing
from stretch.transform.refine.run import Errors, Pair, relative_error  # noqa: E402
from tests.stretch.designs import cpu_and, identity_design  # noqa: E402

pytestmark = pytest.mark.torch


def image(found, count=4):
    return torch.randn(count, *found.graph.input.shape[1:], generator=torch.Generator().manual_seed(0))


def generator():
    return torch.Generator().manual_seed(0)


def test_errors_are_those_of_every_meeting_point_and_of_what_the_classifier_reads(captured):
    """Looked at from outside, by running both networks segment by segment."""
    found = captured("tiny_resnet")
    design = cpu_and("gpu", found.graph, "sum")
    model, original = build(found, design), build(found, identity_design(found.graph))
    x = image(found)
    with torch.no_grad():
        errors = Pair(model, found).errors(x, False, generator())
        here, there, expected, read = x, x, [], []
        for part in design.segments:
            for net in (model, original):
                for layer in net.get_submodule(part.name).modules():
                    if isinstance(layer, torch.nn.Linear):
                        layer.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
            here, there = (net.get_submodule(part.name)(value) for net, value in ((model, here), (original, there)))
            expected.append(float((here - there).square().sum() / there.square().sum()))
    assert expected[0] == 0
    assert [float(error) for error in errors.meeting] == pytest.approx(expected[1:], rel=1e-4)
    assert float(errors.features) == pytest.approx(float((read[0] - read[1]).square().sum() / read[1].square().sum()), rel=1e-4)


@pytest.mark.parametrize("apart", [True, False])
def test_apart_no_error_reaches_the_segments_before(captured, apart):
    found = captured("tiny_resnet")
    model = build(found, cpu_and("gpu", found.graph, "sum"))
    *_, output = Pair(model, found).errors(image(found), apart, generator()).meeting
    output.backward()
    reached = {name.split(".")[0] for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert reached == ({"head"} if apart else {"s1", "s2", "s3", "head"})


def test_apart_concatenated_trunks_answer_with_the_next_segment_that_can_be_compared(captured):
    found = captured("tiny_resnet")
    model = build(found, cpu_and("gpu", found.graph, "concat"))
    errors = Pair(model, found).errors(image(found), True, generator())
    (output,) = errors.meeting
    assert errors.features is None
    output.backward()
    assert {name.split(".")[0] for name, parameter in model.named_parameters() if parameter.grad is not None} == {"s1", "s2", "s3", "head"}


def test_identity_has_nothing_to_refine_and_no_error(captured):
    found = captured("tiny_mobilenet")
    pair = Pair(build(found, identity_design(found.graph)), found)
    assert pair.parameters == []
    x = image(found)
    (output,) = pair.outputs(x, 3, original=False)
    torch.testing.assert_close(output, found.module(x).detach())


def test_loss_counts_ends_whole_and_meeting_points_in_the_mean_unless_each_is_judged_by_itself():
    errors = Errors([torch.tensor(value) for value in (0.1, 0.3, 0.5)], torch.tensor(0.7))
    assert float(errors.loss(False)) == pytest.approx(0.2 + 0.5 + 0.7)
    assert float(errors.loss(True)) == pytest.approx(0.4 + 0.5 + 0.7)
    assert float(Errors([torch.tensor(0.5)]).loss(False)) == 0.5


def test_relative_error_is_zero_for_equals_and_one_for_nothing():
    x = torch.randn(3, 4)
    assert float(relative_error(x, x)) == 0
    assert float(relative_error(torch.zeros_like(x), x)) == pytest.approx(1)
