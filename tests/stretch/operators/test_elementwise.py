import pytest

torch = pytest.importorskip("torch")

from stretch.operators.elementwise import Add, ChannelScale, ChannelShift  # noqa: E402 - torch may be missing

pytestmark = pytest.mark.torch


def test_sum_of_three_inputs_adds_them_all():
    a, b, c = torch.randn(3, 1, 2, 2, 2)
    assert torch.equal(Add()(a, b, c), a + b + c)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 5)])
def test_learned_number_per_channel_meets_the_second_axis(shape):
    x = torch.randn(shape)
    scale, shift = ChannelScale(3), ChannelShift(3)
    with torch.no_grad():
        scale.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
        shift.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
        for channel in range(3):
            assert torch.equal(scale(x)[:, channel], x[:, channel] * (channel + 1))
            assert torch.equal(shift(x)[:, channel], x[:, channel] + (channel + 1))
