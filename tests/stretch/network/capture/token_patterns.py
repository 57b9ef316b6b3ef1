"""Small networks of tokens, windows and channels last, each in another coding style: feature maps N×8×8×8 in and out.

Each is a residual block around a layer with hidden units: attention heads or hidden channels. Where `kept` is
zero, the network computes what a network without those units does.
"""

import functools

import torch
import torch.nn.functional as F
from torch import nn

from tests.stretch.network.capture import patterns
from tests.stretch.network.capture.patterns import parted, pattern

CHANNELS, SIDE, HEADS = 8, 8, 4
LINEAR = (CHANNELS, CHANNELS)


class Tokens(nn.Module):
    """A residual block on tokens; `hidden` transforms them before the projection."""

    def __init__(self, hidden=CHANNELS):
        super().__init__()
        self.norm, self.proj = nn.LayerNorm(CHANNELS), nn.Linear(hidden, CHANNELS)
        self.register_buffer("kept", torch.ones(hidden))

    def forward(self, x):
        n, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens + self.proj(self.hidden(self.norm(tokens)) * self.kept)
        return tokens.transpose(1, 2).reshape(n, c, h, w)


def block(hidden=CHANNELS, **parts):
    """Make a residual block from a function of tokens and named parts."""
    return parted(Tokens, "hidden", parts, hidden)


@block(32, wide=(CHANNELS, 32), drop=lambda: nn.Dropout(0.1))
def Mlp(x, wide, drop):
    """Linear, activation, linear, with dropout between."""
    return drop(F.gelu(wide(x)))


@block(16, wide=(CHANNELS, 32))
def GatedMlp(x, wide):
    """One half of the hidden channels gates the other."""
    a, b = wide(x).chunk(2, dim=-1)
    return F.silu(a) * b


@block(16, gate=(CHANNELS, 16), value=(CHANNELS, 16), gamma=lambda: nn.Parameter(torch.rand(16)))
def TwoGates(x, gate, value, gamma):
    """Gate and value from two layers (SwiGLU), and a factor per channel."""
    return gamma * (F.silu(gate(x)) * value(x))


@block(qkv=(CHANNELS, 3 * CHANNELS))
def Fused(x, qkv):
    """Queries, keys and values from one layer, as in timm, and torch's attention function."""
    n, t, c = x.shape
    q, k, v = qkv(x).reshape(n, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c)


@block(qkv=lambda: nn.Linear(CHANNELS, 3 * CHANNELS, bias=False))
def Interleaved(x, qkv):
    """Queries, keys and values of each head next to each other, with explicit products."""
    n, t, c = x.shape
    q, k, v = qkv(x).view(n, t, HEADS, 3 * (c // HEADS)).transpose(1, 2).chunk(3, dim=-1)
    shares = (q @ k.transpose(-2, -1) * (c // HEADS) ** -0.5).softmax(dim=-1)
    return (shares @ v).permute(0, 2, 1, 3).flatten(2)


@block(q=LINEAR, k=LINEAR, v=LINEAR, bias=[HEADS, SIDE * SIDE, SIDE * SIDE], ban=lambda: torch.eye(SIDE * SIDE) * -100)
def Separate(x, q, k, v, bias, ban):
    """Three layers, a bias for each head, a mask, a batch of heads."""
    n, t, c = x.shape
    q, k, v = (layer(x).reshape(n, t, HEADS, -1).transpose(1, 2).reshape(n * HEADS, t, -1) for layer in (q, k, v))
    scores = torch.bmm(q / 2, k.transpose(1, 2)).view(n, HEADS, t, t) + bias + ban
    seen = torch.bmm(scores.softmax(-1).view(n * HEADS, t, t), v)
    return seen.view(n, HEADS, t, -1).transpose(1, 2).reshape(n, t, c)


@block(16, q=LINEAR, k=LINEAR, v=(CHANNELS, 16))
def Equations(x, q, k, v):
    """Attention by einsum equations, with values of another size than keys."""
    n, t, _ = x.shape
    q, k, v = (layer(x).view(n, t, HEADS, -1) for layer in (q, k, v))
    shares = torch.einsum("bihd,bjhd->bhij", q, k).softmax(-1)
    return torch.einsum("bhij,bjhd->bihd", shares, v).reshape(n, t, 16)


@block(q=LINEAR, k=LINEAR, v=LINEAR)
def Turned(x, q, k, v):
    """Channels first, values on the left of the attention weights (LeViT)."""
    n, t, c = x.shape
    q, k, v = (layer(x).transpose(1, 2).reshape(n, HEADS, c // HEADS, t) for layer in (q, k, v))
    shares = (q.transpose(-2, -1) @ k).softmax(dim=-1)
    return (v @ shares.transpose(-2, -1)).reshape(n, c, t).transpose(1, 2)


@block(qkv=(CHANNELS, 3 * CHANNELS), bias=[1, HEADS, 16, 16], ban=lambda: torch.randn(4, 16, 16))
def ShiftedWindows(x, qkv, bias, ban):
    """Rolled windows, with a bias per head and a mask per window (Swin)."""
    n, t, c = x.shape
    rolled = torch.roll(x.view(n, SIDE, SIDE, c), (-1, -2), (1, 2))
    windows = rolled.view(n, 2, 4, 2, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(n * 4, 16, c)
    q, k, v = qkv(windows).reshape(n * 4, 16, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
    scores = (q * 0.5) @ k.transpose(-2, -1) + bias
    scores = (scores.view(n, 4, HEADS, 16, 16) + ban.unsqueeze(1)).view(-1, HEADS, 16, 16)
    seen = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n * 4, 16, c)
    back = seen.view(n, 2, 2, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(n, SIDE, SIDE, c)
    return torch.roll(back, (1, 2), (1, 2)).view(n, t, c)


@pattern(
    depthwise=lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS),
    norm=lambda: nn.LayerNorm(CHANNELS),
    wide=(CHANNELS, 32),
    proj=(32, CHANNELS),
    weight=[32],
    bias=[32],
    gamma=[CHANNELS],
)
def Response(x, depthwise, norm, wide, proj, weight, bias, gamma):
    """Channels last, with response normalisation (ConvNeXt V2) and a factor per channel."""
    y = F.gelu(wide(norm(depthwise(x).permute(0, 2, 3, 1))))
    length = y.norm(p=2, dim=(1, 2), keepdim=True)
    spread = length / (length.mean(dim=-1, keepdim=True) + 1e-6)
    y = y + torch.addcmul(bias.view(1, 1, 1, -1), weight.view(1, 1, 1, -1), y * spread)
    return x + (gamma * proj(y)).permute(0, 3, 1, 2)


@pattern(norm=lambda: nn.LayerNorm(4 * CHANNELS), reduce=(4 * CHANNELS, CHANNELS), again=(4 * CHANNELS, CHANNELS))
def Merging(x, norm, reduce, again):
    """Patches of four pixels merged into channels, once by slices and once by a reshape, then expanded again."""
    n, c, h, w = x.shape
    y = x.permute(0, 2, 3, 1)
    y = torch.cat([y[:, 0::2, 0::2], y[:, 1::2, 0::2], y[:, 0::2, 1::2], y[:, 1::2, 1::2]], dim=-1)
    y = reduce(norm(y)).reshape(n, h // 4, 2, w // 4, 2, c).permute(0, 1, 3, 4, 2, 5).flatten(3)
    return F.interpolate(again(y).permute(0, 3, 1, 2), scale_factor=4) + x


@pattern(norm=lambda: nn.GroupNorm(1, CHANNELS), gamma=lambda: nn.Parameter(torch.rand(CHANNELS, 1, 1)))
def Pooled(x, norm, gamma):
    """A mixer without weights: the mean of the neighbours minus the pixel (PoolFormer)."""
    y = norm(x)
    return x + gamma * (F.avg_pool2d(y, 3, 1, 1, count_include_pad=False) - y)


MLPS = (Mlp, GatedMlp, TwoGates)
ATTENTIONS = (Fused, Interleaved, Separate, Equations, Turned, ShiftedWindows)
LAST = (Response, Merging, Pooled)

network = functools.partial(patterns.network, channels=CHANNELS)
