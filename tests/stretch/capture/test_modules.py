import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from stretch.capture import capture  # noqa: E402
from stretch.capture.functions import Refusal  # noqa: E402
from stretch.capture.modules import lower_module, lowers  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.Conv2d(4, 8, 3), "conv"),
        (nn.ReLU6(), "relu6"),
        (nn.Hardswish(), "hard_swish"),
        (nn.SiLU(), "silu"),
        (nn.MaxPool2d(2), "max_pool"),
        (nn.AvgPool2d(2), "avg_pool"),
        (nn.AdaptiveAvgPool2d(1), "global_avg_pool"),
        (nn.AdaptiveAvgPool2d(4), "avg_pool"),
        (nn.AdaptiveAvgPool2d(8), "identity"),
        (nn.Dropout(0.2), "dropout"),
        (nn.ZeroPad2d((1, 2, 3, 4)), "pad"),
    ],
)
def test_module_lowers_to_its_kind(module, kind):
    assert [lowered[1] for lowered in lower_module(module, (1, 4, 8, 8))] == [kind]


@pytest.mark.parametrize("padding", [0, 1, (1, 2), "same", "valid"])
def test_padding_of_a_convolution_gives_torch_s_output_shape(padding):
    module = nn.Sequential(nn.Conv2d(3, 4, (3, 5), padding=padding))
    x = torch.zeros(1, 3, 9, 11)
    graph = capture(module, x.shape).graph
    assert graph.by_name[graph.output].shape == tuple(module(x).shape)


def test_timm_same_padding_and_norm_act_are_understood():
    timm = pytest.importorskip("timm")
    module = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    found = capture(module, (1, 3, 64, 64), "lite0")
    assert found.graph.params == sum(p.numel() for p in module.parameters())
    assert "relu6" in {op.kind for op in found.graph.ops}
    assert any(op.attrs["padding"] == (0, 0, 1, 1) for op in found.graph.ops if op.kind == "conv")


@pytest.mark.parametrize(
    "module", [nn.BatchNorm2d(4, track_running_stats=False), nn.BatchNorm2d(4, momentum=None), nn.MaxPool2d(2, return_indices=True)]
)
def test_setting_that_is_not_supported_is_refused(module):
    with pytest.raises(Refusal):
        lower_module(module, (1, 4, 8, 8))


def test_module_of_another_package_with_a_known_name_is_not_lowered():
    class Conv2d(nn.Module):
        def forward(self, x):
            return x

    assert not lowers(Conv2d())


def test_gelu_of_timm_is_the_exact_one():
    layers = pytest.importorskip("timm.layers.activations")
    assert [op.attrs for op in capture(nn.Sequential(layers.GELU()), (1, 3, 4, 4)).graph.ops[1:]] == [{"approximate": "none"}]
