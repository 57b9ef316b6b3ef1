"""Small networks of tokens, windows and channels that lie last, one form of writing them each: feature maps N×8×8×8 in and out.

Each is a residual block around something with hidden units: heads of attention or hidden channels. Where
`kept` is zero, the network is one without those units.
"""

import torch
import torch.nn.functional as F
from torch import nn

CHANNELS, SIDE, HEADS = 8, 8, 4


class Tokens(nn.Module):
    """A residual block on tokens; `hidden` is what it does to them before it projects."""

    def __init__(self, hidden=CHANNELS):
        super().__init__()
        self.norm, self.proj = nn.LayerNorm(CHANNELS), nn.Linear(hidden, CHANNELS)
        self.register_buffer("kept", torch.ones(hidden))

    def forward(self, x):
        n, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens + self.proj(self.hidden(self.norm(tokens)) * self.kept)
        return tokens.transpose(1, 2).reshape(n, c, h, w)


class Mlp(Tokens):
    """Linear, activation, linear, with dropout between."""

    def __init__(self):
        super().__init__(32)
        self.wide, self.drop = nn.Linear(CHANNELS, 32), nn.Dropout(0.1)

    def hidden(self, x):
        return self.drop(F.gelu(self.wide(x)))


class GatedMlp(Tokens):
    """One half of the hidden channels gates the other."""

    def __init__(self):
        super().__init__(16)
        self.wide = nn.Linear(CHANNELS, 32)

    def hidden(self, x):
        a, b = self.wide(x).chunk(2, dim=-1)
        return F.silu(a) * b


class TwoGates(Tokens):
    """Gate and value of two layers (SwiGLU), and a factor a channel."""

    def __init__(self):
        super().__init__(16)
        self.gate, self.value, self.gamma = nn.Linear(CHANNELS, 16), nn.Linear(CHANNELS, 16), nn.Parameter(torch.rand(16))

    def hidden(self, x):
        return self.gamma * (F.silu(self.gate(x)) * self.value(x))


class Fused(Tokens):
    """Queries, keys and values of one layer, as timm writes it, and torch's own attention."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(CHANNELS, 3 * CHANNELS)

    def hidden(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c)


class Interleaved(Tokens):
    """Queries, keys and values of each head next to each other, written out."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(CHANNELS, 3 * CHANNELS, bias=False)

    def hidden(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(x).view(n, t, HEADS, 3 * (c // HEADS)).transpose(1, 2).chunk(3, dim=-1)
        shares = (q @ k.transpose(-2, -1) * (c // HEADS) ** -0.5).softmax(dim=-1)
        return (shares @ v).permute(0, 2, 1, 3).flatten(2)


class Separate(Tokens):
    """Three layers, a bias for each head, a mask, a batch of heads."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(CHANNELS, CHANNELS) for _ in range(3))
        self.bias = nn.Parameter(torch.randn(HEADS, SIDE * SIDE, SIDE * SIDE))
        self.register_buffer("ban", torch.eye(SIDE * SIDE) * -100)

    def hidden(self, x):
        n, t, c = x.shape
        q, k, v = (layer(x).reshape(n, t, HEADS, -1).transpose(1, 2).reshape(n * HEADS, t, -1) for layer in (self.q, self.k, self.v))
        scores = torch.bmm(q / 2, k.transpose(1, 2)).view(n, HEADS, t, t) + self.bias + self.ban
        seen = torch.bmm(scores.softmax(-1).view(n * HEADS, t, t), v)
        return seen.view(n, HEADS, t, -1).transpose(1, 2).reshape(n, t, c)


class Equations(Tokens):
    """By equations, values of another size than keys."""

    def __init__(self):
        super().__init__(16)
        self.q, self.k, self.v = nn.Linear(CHANNELS, CHANNELS), nn.Linear(CHANNELS, CHANNELS), nn.Linear(CHANNELS, 16)

    def hidden(self, x):
        n, t, _ = x.shape
        q, k, v = (layer(x).view(n, t, HEADS, -1) for layer in (self.q, self.k, self.v))
        shares = torch.einsum("bihd,bjhd->bhij", q, k).softmax(-1)
        return torch.einsum("bhij,bjhd->bihd", shares, v).reshape(n, t, 16)


class Turned(Tokens):
    """Channels first, values before shares (LeViT)."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(CHANNELS, CHANNELS) for _ in range(3))

    def hidden(self, x):
        n, t, c = x.shape
        q, k, v = (layer(x).transpose(1, 2).reshape(n, HEADS, c // HEADS, t) for layer in (self.q, self.k, self.v))
        shares = (q.transpose(-2, -1) @ k).softmax(dim=-1)
        return (v @ shares.transpose(-2, -1)).reshape(n, c, t).transpose(1, 2)


class ShiftedWindows(Tokens):
    """Windows that are rolled, with a bias for each head and a mask for each window (Swin)."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(CHANNELS, 3 * CHANNELS)
        self.bias = nn.Parameter(torch.randn(1, HEADS, 16, 16))
        self.register_buffer("ban", torch.randn(4, 16, 16))

    def hidden(self, x):
        n, t, c = x.shape
        rolled = torch.roll(x.view(n, SIDE, SIDE, c), (-1, -2), (1, 2))
        windows = rolled.view(n, 2, 4, 2, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(n * 4, 16, c)
        q, k, v = self.qkv(windows).reshape(n * 4, 16, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        scores = (q * 0.5) @ k.transpose(-2, -1) + self.bias
        scores = (scores.view(n, 4, HEADS, 16, 16) + self.ban.unsqueeze(1)).view(-1, HEADS, 16, 16)
        seen = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n * 4, 16, c)
        back = seen.view(n, 2, 2, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(n, SIDE, SIDE, c)
        return torch.roll(back, (1, 2), (1, 2)).view(n, t, c)


class Response(nn.Module):
    """Channels last, with a norm of the response (ConvNeXt V2) and a factor a channel."""

    def __init__(self):
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS), nn.LayerNorm(CHANNELS)
        self.wide, self.proj = nn.Linear(CHANNELS, 32), nn.Linear(32, CHANNELS)
        self.weight, self.bias, self.gamma = (nn.Parameter(torch.randn(size)) for size in (32, 32, CHANNELS))

    def forward(self, x):
        y = F.gelu(self.wide(self.norm(self.depthwise(x).permute(0, 2, 3, 1))))
        length = y.norm(p=2, dim=(1, 2), keepdim=True)
        spread = length / (length.mean(dim=-1, keepdim=True) + 1e-6)
        y = y + torch.addcmul(self.bias.view(1, 1, 1, -1), self.weight.view(1, 1, 1, -1), y * spread)
        return x + (self.gamma * self.proj(y)).permute(0, 3, 1, 2)


class Merging(nn.Module):
    """Patches of four pixels merged into channels, once by slices and once by a reshape, and spread out again."""

    def __init__(self):
        super().__init__()
        self.norm, self.reduce, self.again = (
            nn.LayerNorm(4 * CHANNELS),
            nn.Linear(4 * CHANNELS, CHANNELS),
            nn.Linear(4 * CHANNELS, CHANNELS),
        )

    def forward(self, x):
        n, c, h, w = x.shape
        y = x.permute(0, 2, 3, 1)
        y = torch.cat([y[:, 0::2, 0::2], y[:, 1::2, 0::2], y[:, 0::2, 1::2], y[:, 1::2, 1::2]], dim=-1)
        y = self.reduce(self.norm(y)).reshape(n, h // 4, 2, w // 4, 2, c).permute(0, 1, 3, 4, 2, 5).flatten(3)
        return F.interpolate(self.again(y).permute(0, 3, 1, 2), scale_factor=4) + x


class Pooled(nn.Module):
    """A mixer without weights: the mean of neighbours less oneself (PoolFormer)."""

    def __init__(self):
        super().__init__()
        self.norm, self.gamma = nn.GroupNorm(1, CHANNELS), nn.Parameter(torch.rand(CHANNELS, 1, 1))

    def forward(self, x):
        y = self.norm(x)
        return x + self.gamma * (F.avg_pool2d(y, 3, 1, 1, count_include_pad=False) - y)


MLPS = (Mlp, GatedMlp, TwoGates)
ATTENTIONS = (Fused, Interleaved, Separate, Equations, Turned, ShiftedWindows)
LAST = (Response, Merging, Pooled)


def network(*patterns):
    """A network of a convolution, the patterns one after the other, and a classifier; its weights are drawn again."""
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS), nn.ReLU())
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 5))
    return nn.Sequential(stem, *[pattern() for pattern in patterns], head).eval()
