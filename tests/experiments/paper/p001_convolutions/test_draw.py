"""Convolutions are of the paper's kinds by their names."""

import pytest

from experiments.paper.p001_convolutions.draw import kind_of


@pytest.mark.parametrize(
    ("convolution", "kernels", "kind"),
    [
        ("resnet50: 512×14×14 → 512, 3×3 / 2, relu", "conv", "3×3"),
        ("resnet50: 512×28×28 → 128, 1×1, relu", "conv", "1×1"),
        ("mobilenet_v2: 96×112×112 → 96, 3×3 / 2, 96 groups, clip", "depthwise", "depthwise"),
        ("regnet_x_1_6gf: 168×28×28 → 168, 3×3, 7 groups, relu", "conv", ""),
        ("resnet50: 3×224×224 → 64, 7×7 / 2, relu", "stem", ""),
    ],
)
def test_kind_is_told_by_kernel_and_groups(convolution, kernels, kind):
    assert kind_of({"convolution": convolution, "kernels": kernels}) == kind
