import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from predictors.errors import UsageError  # noqa: E402
from stretch.capture.inputs import Inputs  # noqa: E402

pytestmark = pytest.mark.torch


class Masked(nn.Module):
    def forward(self, image, mask, gain=2.0):
        return image * mask * gain


A, B = (1, 3, 4, 4), (1, 1, 4, 4)


@pytest.mark.parametrize("given", [[A, B], {"image": A, "mask": B}, {"mask": B, "image": A}])
def test_several_inputs_stand_in_the_order_of_the_forward_and_are_given_by_name(given):
    inputs = Inputs.of(given, Masked())
    assert list(inputs.shapes.items()) == [("image", A), ("mask", B)]
    image, mask = inputs.random(3)
    assert torch.equal(inputs.call(Masked(), [image, mask]), image * mask * 2.0)
    assert torch.equal(inputs.random(3)[1], mask)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"image": A}, "no shape for its input `mask`"),
        ({"image": A, "mask": B, "other": A}, "no input `other`"),
        ([A, B, (1,), (1,)], "4 input shapes"),
        ({"image": A, "mask": (1, 0)}, "no shape"),
        ({"image": A, "mask": "big"}, "no shape"),
        ({}, "no shape for its input"),
    ],
)
def test_shapes_that_do_not_fit_the_forward_are_refused(given, says):
    with pytest.raises(UsageError, match=says) as refused:
        Inputs.of(given, Masked())
    assert refused.value.hint
