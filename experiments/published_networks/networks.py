"""Networks with published times, for the tables in `predictors/measurements/published`. Weights have no effect on times.

Networks of MediaPipe's tasks follow their papers and model cards (backbone, input, feature maps, heads), because their files are not
available here. Networks of the MobileNetV4 paper come from timm and torchvision; MobileOne and FastViT have the form with merged
branches that was timed.
"""

from functools import partial
from itertools import pairwise

import timm
import torch
import torchvision
from timm.utils.model import reparameterize_model
from torch import nn


def _separable(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Return a depthwise and a 1×1 convolution with ReLU6."""
    return nn.Sequential(
        nn.Conv2d(before, before, kernel, stride, kernel // 2, groups=before, bias=False),
        nn.Conv2d(before, after, 1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU6(),
    )


class _Cell(nn.Module):
    """A cell of BiFPN (Tan et al., 2020, figure 3): down the pyramid, then up."""

    def __init__(self, channels: int, levels: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(_separable(channels, channels) for _ in range(levels - 1))
        self.up = nn.ModuleList(_separable(channels, channels) for _ in range(levels - 1))

    def forward(self, levels: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the levels of the pyramid, largest first."""
        tops = [levels[-1]]
        for level, fuse in zip(reversed(levels[:-1]), self.down, strict=True):
            tops.append(fuse(level + nn.functional.interpolate(tops[-1], size=level.shape[-2:])))
        tops.reverse()
        results = [tops[0]]
        for level, top, fuse in zip(levels[1:], tops[1:], self.up, strict=True):
            results.append(fuse(level + top + nn.functional.max_pool2d(results[-1], 2, ceil_mode=True)))
        return results


class EfficientDet(nn.Module):
    """EfficientDet-Lite0: 64 channels, three cells, heads of three separable convolutions, nine boxes per place, 90 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = timm.create_model("efficientnet_lite0", features_only=True, out_indices=(2, 3, 4))
        self.inner = nn.ModuleList(nn.Conv2d(channels, 64, 1) for channels in self.backbone.feature_info.channels())
        self.cells = nn.ModuleList(_Cell(64, 5) for _ in range(3))
        self.classes = nn.Sequential(*(_separable(64, 64) for _ in range(3)), _separable(64, 9 * 90))
        self.boxes = nn.Sequential(*(_separable(64, 64) for _ in range(3)), _separable(64, 9 * 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores and boxes of all levels."""
        levels = [inner(level) for inner, level in zip(self.inner, self.backbone(x), strict=True)]
        for _ in range(2):
            levels.append(nn.functional.max_pool2d(levels[-1], 2, ceil_mode=True))
        for cell in self.cells:
            levels = cell(levels)
        scores = [torch.flatten(head(level), 1) for level in levels for head in (self.classes, self.boxes)]
        return torch.cat(scores, 1)


class SSD(nn.Module):
    """SSD with MobileNetV2: heads at strides 16 and 32 and at four smaller maps, 91 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = timm.create_model("mobilenetv2_100", features_only=True, out_indices=(3, 4))
        channels = [*self.backbone.feature_info.channels(), 512, 256, 256, 128]
        self.more = nn.ModuleList(_separable(before, after, stride=2) for before, after in pairwise(channels[1:]))
        boxes = [3, 6, 6, 6, 6, 6]
        self.heads = nn.ModuleList(_separable(channel, count * 95) for channel, count in zip(channels, boxes, strict=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores and boxes of all maps."""
        maps = list(self.backbone(x))
        for more in self.more:
            maps.append(more(maps[-1]))
        return torch.cat([torch.flatten(head(level), 1) for head, level in zip(self.heads, maps, strict=True)], 1)


class _Blaze(nn.Module):
    """A block of BlazeFace: 5×5 depthwise and 1×1, twice in double blocks, parallel to a pooled or padded shortcut."""

    def __init__(self, before: int, after: int, stride: int = 1, middle: int = 0) -> None:
        super().__init__()
        inner = middle or after
        parts = [nn.Conv2d(before, before, 5, stride, 2, groups=before), nn.Conv2d(before, inner, 1)]
        if middle:
            parts += [nn.ReLU(), nn.Conv2d(inner, inner, 5, 1, 2, groups=inner), nn.Conv2d(inner, after, 1)]
        self.body = nn.Sequential(*parts)
        self.short = (
            nn.Identity()
            if before == after and stride == 1
            else nn.Sequential(nn.MaxPool2d(stride) if stride > 1 else nn.Identity(), nn.Conv2d(before, after, 1))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's result."""
        return torch.relu(self.body(x) + self.short(x))


class BlazeFace(nn.Module):
    """BlazeFace, short range (Bazarevsky et al., 2019, table 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 5, 2, 2), nn.ReLU())
        single = [_Blaze(24, 24), _Blaze(24, 24), _Blaze(24, 48, 2), _Blaze(48, 48), _Blaze(48, 48)]
        double = [_Blaze(48, 96, 2, 24), _Blaze(96, 96, 1, 24), _Blaze(96, 96, 1, 24)]
        self.near = nn.Sequential(*single, *double)
        self.far = nn.Sequential(_Blaze(96, 96, 2, 24), _Blaze(96, 96, 1, 24), _Blaze(96, 96, 1, 24))
        self.heads = nn.ModuleList([nn.Conv2d(96, 2 * 17, 1), nn.Conv2d(96, 6 * 17, 1)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores, boxes and key points at 16×16 and 8×8 places."""
        near = self.near(self.stem(x))
        return torch.cat([torch.flatten(head(level), 1) for head, level in zip(self.heads, (near, self.far(near)), strict=True)], 1)


def _merged(name: str) -> nn.Module:
    """Return a network of timm with its training-time branches merged."""
    return reparameterize_model(timm.create_model(name).eval())


#: Functions that make the networks, by their names in the tables.
efficientdet_lite0, ssd_mobilenet_v2, blazeface = EfficientDet, SSD, BlazeFace
mobilenet_v2_half = partial(torchvision.models.mobilenet_v2, weights=None, width_mult=0.5)
mobilenet_v2_wide = partial(torchvision.models.mobilenet_v2, weights=None, width_mult=1.5)
mobilenet_v3_half = partial(torchvision.models.mobilenet_v3_large, weights=None, width_mult=0.5)
mobileone_s0, mobileone_s4 = partial(_merged, "mobileone_s0"), partial(_merged, "mobileone_s4")
fastvit_t8, fastvit_sa12, fastvit_sa24 = (partial(_merged, f"fastvit_{size}") for size in ("t8", "sa12", "sa24"))
