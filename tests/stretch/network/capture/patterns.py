"""Small networks that tracing cannot capture, one graph pattern each: feature maps N×4×8×8 in and out."""

import torch
import torch.nn.functional as F
from torch import nn

CHANNELS, SIDE = 4, 8


class Calling(nn.Module):
    """Call a function on the input and the parts; a part is a module, or the shape of a random parameter."""

    def __init__(self, function, *parts):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.function, self.names = function, [f"part{i}" for i in range(len(parts))]
        for name, part in zip(self.names, parts, strict=True):
            setattr(self, name, part if isinstance(part, nn.Module) else nn.Parameter(torch.randn(part, generator=generator)))

    def forward(self, x):
        return self.function(x, *[getattr(self, name) for name in self.names])


def parted(base, method, parts, *arguments):
    """Make a subclass of `base` whose `method` calls the decorated function on a tensor and the named parts.

    Args:
        base: The class.
        method: Name of its method.
        parts: Sizes of linear layers as tuples, shapes of parameters as lists, or functions that return a module or a buffer.
        arguments: Arguments for the constructor of `base`.
    """

    def decorate(function):
        def __init__(self):
            base.__init__(self, *arguments)
            for name, part in parts.items():
                value = part() if callable(part) else nn.Linear(*part) if isinstance(part, tuple) else nn.Parameter(torch.randn(part))
                self.register_buffer(name, value) if type(value) is torch.Tensor else setattr(self, name, value)

        def compute(self, x):
            return function(x, *(getattr(self, name) for name in parts))

        return type(function.__name__, (base,), {"__init__": __init__, method: compute, "__doc__": function.__doc__})

    return decorate


def pattern(**parts):
    """Make a module class from a function of a feature map and named parts."""
    return parted(nn.Module, "forward", parts)


@pattern(
    norm=lambda: nn.LayerNorm(CHANNELS),
    qkv=(CHANNELS, 3 * CHANNELS),
    proj=(CHANNELS, CHANNELS),
    first=[1, 1, CHANNELS],
    table=[5, 2],
    places=lambda: torch.arange(65 * 65).reshape(65, 65) % 5,
)
def Attention(x, norm, qkv, proj, first, table, places):
    """Attention on tokens with a class token, two heads and a relative position bias, and back to a map."""
    n, c, h, w = x.shape
    tokens = torch.cat([first.expand(n, -1, -1), x.flatten(2).transpose(1, 2)], dim=1)
    q, k, v = qkv(norm(tokens)).reshape(n, h * w + 1, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
    bias = table[places].permute(2, 0, 1).unsqueeze(0)
    tokens = tokens + proj(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(n, -1, c))
    return tokens[:, 1:].transpose(1, 2).reshape(n, c, h, w)


@pattern()
def Windows(x):
    """Shifted windows, with matrix products in each window."""
    n, c, h, w = x.shape
    windows = torch.roll(x, (-2, -2), (2, 3)).view(n, c, 2, h // 2, 2, w // 2).permute(0, 2, 4, 3, 5, 1).reshape(-1, h * w // 4, c)
    mixed = (windows @ windows.transpose(-2, -1) / c).softmax(-1) @ windows
    back = mixed.view(n, 2, 2, h // 2, w // 2, c).permute(0, 5, 1, 3, 2, 4).reshape(n, c, h, w)
    return torch.roll(back, (2, 2), (2, 3))


@pattern(wide=(CHANNELS, 4 * CHANNELS), narrow=(2 * CHANNELS, CHANNELS), gamma=[CHANNELS])
def Last(x, wide, narrow, gamma):
    """Channels last: response normalisation (ConvNeXt V2), a gate that is split off, a scale per layer."""
    a, b = wide(x.permute(0, 2, 3, 1)).chunk(2, dim=-1)
    spread = a.norm(p=2, dim=(1, 2), keepdim=True)
    gated = a * (spread / (spread.mean(-1, keepdim=True) + 1e-6)) * torch.sigmoid(b)
    return x + (gamma * narrow(gated)).permute(0, 3, 1, 2)


@pattern(a=lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), b=lambda: nn.Conv2d(CHANNELS, CHANNELS, 1))
def Selected(x, a, b):
    """Kernels that are selected by a softmax over stacked branches (SKNet), and a subtraction."""
    both = torch.stack([a(x), b(x)], dim=1)
    weight = both.sum(1).mean((2, 3), keepdim=True).unsqueeze(1).mul(both.mean((3, 4), keepdim=True)).softmax(1)
    return (both * weight).sum(1) - x


@pattern(norm=lambda: nn.GroupNorm(2, CHANNELS))
def Resized(x, norm):
    """Interpolation, reflected borders, a group norm, and an operation in place."""
    y = F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=False)
    y = norm(F.avg_pool2d(F.pad(y, (2, 2, 2, 2), mode="reflect"), 2))
    y.add_(1.0).mul_(0.5)
    return y


@pattern(cells=lambda: nn.LSTM(CHANNELS, CHANNELS, batch_first=True))
def Recurrent(x, cells):
    """A recurrent layer along the rows, and a `no_grad` block whose result has no gradient anyway."""
    n, c, h, w = x.shape
    rows, _ = cells(x.permute(0, 2, 3, 1).reshape(n * h, w, c))
    with torch.no_grad():
        scale = 1 + x.sign().mean((1, 2, 3), keepdim=True)
    return rows.reshape(n, h, w, c).permute(0, 3, 1, 2) * scale


@pattern(mix=[CHANNELS, CHANNELS])
def Decided(x, mix):
    """Control flow that depends on shapes, values and positions of maxima, an einsum equation, and a cast."""
    if x.shape[2] > 4:
        x = torch.einsum("nchw,cd->ndhw", x, mix)
    values, places = x.max(dim=1, keepdim=True)
    return torch.where(x > 0, x, values) + places.to(x.dtype) / 10


@pattern()
def Prefixed(x):
    """Tokens with an empty prefix that is cut off and put in front again."""
    tokens = x.flatten(2).transpose(1, 2)
    prefix, rest = tokens.split([0, tokens.shape[1]], dim=1)
    joined = torch.cat([tokens[:, :0], rest.softmax(2), prefix], dim=1)
    return joined.transpose(1, 2).reshape(x.shape)


PATTERNS = (Attention, Windows, Last, Selected, Resized, Recurrent, Decided, Prefixed)


def network(*patterns, channels=CHANNELS):
    """Make a network of a convolution, the patterns in sequence and a classifier, with newly drawn weights."""
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))
    return nn.Sequential(stem, *[pattern() for pattern in patterns], head).eval()
