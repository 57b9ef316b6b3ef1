import numpy as np
import pytest

torch = pytest.importorskip("torch")
from hypothesis import given  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402

from stretch.capture.axes.constants import spread  # noqa: E402
from stretch.capture.factors import map_axes  # noqa: E402

pytestmark = pytest.mark.torch

SHAPE = (1, 6, 2, 4)


@given(st.permutations(range(5)), st.tuples(*[st.booleans()] * 5), st.integers(0, 4))
def test_constant_on_a_map_is_broadcast_as_on_the_tensor_that_is_seen(order, whole, cut):
    axes = map_axes(SHAPE).reshaped((1, 3, 2, 2, 4))
    assert axes is not None
    axes = axes.permuted(order)
    sizes = tuple(size if keep else 1 for size, keep in zip(axes.shape, whole, strict=True))[cut:]
    tensor = torch.randn(sizes, generator=torch.Generator().manual_seed(0))
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    seen = x.reshape(1, 3, 2, 2, 4).permute(order)
    want = (seen + tensor).permute(*np.argsort(order)).reshape(SHAPE)
    found = spread(tensor, axes, ("channel", "pixel"))
    assert found is not None
    got = (x.reshape(6, 8) + found).reshape(SHAPE)
    assert torch.equal(got, want)


def test_constant_that_differs_between_pixels_is_none_for_channels_alone():
    axes = map_axes(SHAPE)
    assert spread(torch.ones(4), axes, ("channel",)) is None
    assert spread(torch.ones(6, 1, 1), axes, ("channel",)).shape == (6,)
