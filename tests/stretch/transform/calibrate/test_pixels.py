import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402

from stretch.operators.convolution import PaddedConv2d  # noqa: E402
from stretch.transform.calibrate.pixels import PIXELS, patches, pixels_for, rows_of  # noqa: E402

pytestmark = pytest.mark.torch


@given(
    groups=st.sampled_from((1, 2, 4)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    dilation=st.integers(1, 2),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    count=st.sampled_from((5, 1000)),
)
def test_patches_times_weights_are_the_convolution_at_the_chosen_pixels(groups, kernel, stride, dilation, pads, count):
    conv = PaddedConv2d(4, 8, kernel, stride, dilation=dilation, groups=groups, bias=False, pads=pads)
    x = torch.randn(3, 4, 9, 8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        output = conv(x)
        rows = patches(conv, x, tuple(output.shape), count).reshape(-1, groups, conv.weight[0].numel())
        weight = conv.weight.reshape(groups, 8 // groups, -1)
        got = torch.einsum("rgi,goi->rgo", rows, weight).flatten(1)
    torch.testing.assert_close(got, rows_of(output, count), rtol=1e-4, atol=1e-5)


def test_vector_is_one_pixel():
    x = torch.randn(4, 7)
    assert rows_of(x, 3) is x
    assert patches(torch.nn.Linear(7, 2), x, (4, 2), 3) is x


def test_few_images_are_looked_at_in_no_more_pixels_than_say_something_new():
    assert pixels_for(30, 64) == pixels_for(30, 576) == PIXELS
    assert pixels_for(30, 4608) * 30 >= 4 * 4608


def test_wide_layers_get_fewer_rows_but_some_for_every_input():
    assert pixels_for(512, 576) * 512 > 50_000
    assert pixels_for(256, 2304) == 4 * 2304 // 256
    for inputs, groups in ((9, 960), (64, 1), (576, 4), (4608, 1)):
        rows = 100 * pixels_for(100, inputs, groups)
        assert 4 * inputs <= rows < 2**16 + 100
        assert rows * inputs * groups <= 2**27 or rows < 4 * inputs + 100
