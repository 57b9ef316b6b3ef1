"""Attention, the embedding of positions before it, and recurrent layers of ONNX, as torch's functions."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx

from predictors.errors import StretchError
from stretch.models.builder import shape_of
from stretch.models.onnx.site import OnnxSite, rule


def _parted(site: OnnxSite, x: fx.Node, heads: int) -> fx.Node:
    """Batch × tokens × channels as batch × heads × tokens × channels of each."""
    batch, tokens, channels = shape_of(x)
    if heads < 1 or channels % heads:
        raise StretchError(f"its {channels} channels are not of {heads} heads")
    parted = site.builder.call(torch.reshape, x, (batch, tokens, heads, channels // heads))
    return site.builder.call(torch.permute, parted, (0, 2, 1, 3))


def _joined(site: OnnxSite, x: fx.Node) -> fx.Node:
    """The same back again."""
    batch, heads, tokens, channels = shape_of(x)
    turned = site.builder.call(torch.permute, x, (0, 2, 1, 3))
    return site.builder.call(torch.reshape, turned, (batch, tokens, heads * channels))


def _check_attention(site: OnnxSite) -> None:
    """Refuse what torch's attention does not compute."""
    if any(site.value(i) is not None for i in (4, 5, 6)):
        raise StretchError("it reads what was computed before, or how many tokens count")
    if site.attrs.get("softcap", 0) or any(site.attrs.get(name, -1) != -1 for name in ("left_window_size", "right_window_size")):
        raise StretchError("it bounds its scores, or the tokens that one sees")
    if site.attrs.get("is_causal", 0) and site.value(3) is not None:
        raise StretchError("it has a mask, and sees no later tokens besides")


@rule("Attention")
def _attention(site: OnnxSite) -> fx.Node:
    """softmax(Q · Kᵀ · scale + mask) · V, of heads side by side or along an axis of their own."""
    _check_attention(site)
    parts = [site.tensor(i) for i in range(3)]
    flat = len(shape_of(parts[0])) == 3
    if flat:
        q, kv = (int(site.attrs.get(name, 0)) for name in ("q_num_heads", "kv_num_heads"))
        parts = [_parted(site, x, heads) for x, heads in zip(parts, (q, kv, kv), strict=True)]
    more: dict[str, Any] = {"is_causal": True} if site.attrs.get("is_causal", 0) else {}
    if shape_of(parts[0])[1] != shape_of(parts[1])[1]:
        more["enable_gqa"] = True
    scale = site.attrs.get("scale")
    mask = None if site.value(3) is None else site.tensor(3)
    called = site.builder.call(F.scaled_dot_product_attention, *parts, mask, 0.0, scale=None if scale is None else float(scale), **more)
    return _joined(site, called) if flat else called


def _turns(site: OnnxSite, i: int, what: str, sizes: Sequence[int]) -> fx.Node:
    """Cosines or sines for each token, batch × tokens × half of what turns, with an axis for the heads."""
    batch, tokens, half, axis = sizes
    known, places = site.known(i, what), site.optional(3, "positions")
    if places is not None:
        if (
            places.shape != (batch, tokens)
            or known.ndim != 2
            or known.shape[1] != half
            or not ((places >= 0) & (places < len(known))).all()
        ):
            raise StretchError(f"its {what} have the shape {list(known.shape)}, its positions {list(places.shape)}")
        known = known[places]
    if known.shape not in ((batch, tokens, half), (1, tokens, half)):
        raise StretchError(f"its {what} have the shape {list(known.shape)}, not {[batch, tokens, half]}")
    return site.builder.stored(np.expand_dims(known, axis), f"{site.name}_{what}")


@rule("RotaryEmbedding")
def _rotary(site: OnnxSite) -> fx.Node:
    """Pairs of channels turned by an angle that grows with the token's place (Su et al., RoFormer, section 3.2)."""
    builder, shape, x, axis = site.builder, site.shape, site.x, 1
    if len(shape) == 3:
        heads = int(site.attrs.get("num_heads", 0))
        if heads < 1 or shape[2] % heads:
            raise StretchError(f"its {shape[2]} channels are not of {heads} heads")
        x, axis = builder.call(torch.reshape, x, (*shape[:2], heads, shape[2] // heads)), 2
    channels, tokens = shape_of(x)[-1], shape_of(x)[3 - axis]
    turning = int(site.attrs.get("rotary_embedding_dim", 0)) or channels
    if not 0 < turning <= channels or turning % 2:
        raise StretchError(f"it turns {turning} of {channels} channels")
    sizes = (shape[0], tokens, turning // 2, axis)
    cos, sin = _turns(site, 1, "cosines", sizes), _turns(site, 2, "sines", sizes)
    woven = bool(site.attrs.get("interleaved", 0))
    halves = (slice(0, turning, 2), slice(1, turning, 2)) if woven else (slice(0, turning // 2), slice(turning // 2, turning))
    one, other = (builder.call(operator.getitem, x, (..., halve)) for halve in halves)
    left, right, back, front = (builder.call(operator.mul, a, b) for a, b in ((one, cos), (other, sin), (one, sin), (other, cos)))
    pair = [builder.call(operator.sub, left, right), builder.call(operator.add, back, front)]
    if woven:
        called = builder.call(torch.reshape, builder.call(torch.stack, pair, -1), (*shape_of(x)[:-1], turning))
        pair = [called]
    rest = [] if turning == channels else [builder.call(operator.getitem, x, (..., slice(turning, channels)))]
    called = builder.call(torch.cat, [*pair, *rest], -1) if len(pair) + len(rest) > 1 else pair[0]
    return called if axis == 1 else builder.call(torch.reshape, called, shape)


#: Where torch's gates stand among ONNX's: input, output, forget, cell there, input, forget, cell, output here; update,
#: reset, hidden there, reset, update, new here.
_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
_FUNCTIONS: dict[str, Any] = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}

#: Activations that torch's layers have, of each direction.
_OWN = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _words(values: Any) -> list[str]:
    return [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in values]


def _check_layer(site: OnnxSite, ways: int) -> None:
    """Refuse what torch's layers do not compute."""
    if "activations" in site.attrs and _words(site.attrs["activations"]) != _OWN[site.op] * ways:
        raise StretchError(f"its activations are {_words(site.attrs['activations'])}")
    if site.attrs.get("clip") or site.attrs.get("layout", 0) or site.attrs.get("input_forget", 0):
        raise StretchError("it clips, couples its gates, or has its batch first")
    if site.op == "GRU" and not site.attrs.get("linear_before_reset", 0):
        raise StretchError("it resets before its product, and torch's behind it")
    if site.value(4) is not None:
        lengths = site.known(4, "lengths")
        if (lengths != site.shape[0]).any():
            raise StretchError("its sequences have lengths of their own")
    if site.value(7) is not None and site.known(7, "peepholes").any():
        raise StretchError("it has peepholes")


def _ordered(site: OnnxSite, weight: np.ndarray) -> np.ndarray:
    """Gates in torch's order."""
    order = _GATES[site.op]
    return np.concatenate([np.split(weight, len(order))[i] for i in order])


def _parameters(site: OnnxSite, ways: int, size: int) -> list[fx.Node]:
    """Weights and biases of each direction, as torch's functions take them."""
    gates = len(_GATES[site.op]) * size
    weight, recurrent = site.known(1, "weight"), site.known(2, "recurrent weight")
    bias = site.optional(3, "bias")
    bias = np.zeros((ways, 2 * gates), np.float32) if bias is None else bias
    if weight.shape[:2] != (ways, gates) or recurrent.shape != (ways, gates, size) or bias.shape != (ways, 2 * gates):
        raise StretchError(f"its weights have the shapes {list(weight.shape)}, {list(recurrent.shape)} and {list(bias.shape)}")
    built = []
    for way in range(ways):
        parameters = {"weight": weight[way], "recurrent": recurrent[way], "bias": bias[way, :gates], "recurrent_bias": bias[way, gates:]}
        built += [site.builder.stored(_ordered(site, parameter), f"{site.name}_{name}_{way}") for name, parameter in parameters.items()]
    return built


@rule("LSTM", "GRU", "RNN")
def _recurrent(site: OnnxSite) -> list[fx.Node]:
    direction = str(site.attrs.get("direction", "forward"))
    if direction not in ("forward", "reverse", "bidirectional") or len(site.shape) != 3:
        raise StretchError(f"its direction is `{direction[:20]}`, and it reads {list(site.shape)}")
    ways, size = 2 if direction == "bidirectional" else 1, int(site.attrs.get("hidden_size", 0))
    _check_layer(site, ways)
    steps, batch = site.shape[:2]
    states = [_state(site, i, (ways, batch, size)) for i in (5, 6)[: 2 if site.op == "LSTM" else 1]]
    builder = site.builder
    x = builder.call(torch.flip, site.x, [0]) if direction == "reverse" else site.x
    state: Any = tuple(states) if site.op == "LSTM" else states[0]
    parameters = _parameters(site, ways, size)
    called = builder.call(_FUNCTIONS[site.op], x, state, parameters, True, 1, 0.0, False, ways == 2, False)
    results = [builder.call(operator.getitem, called, i) for i in range(min(site.results, 1 + len(states)))]
    whole = builder.call(torch.reshape, results[0], (steps, batch, ways, size))
    whole = builder.call(torch.permute, whole, (0, 2, 1, 3))
    return [builder.call(torch.flip, whole, [0]) if direction == "reverse" else whole, *results[1:]]


def _state(site: OnnxSite, i: int, shape: tuple[int, ...]) -> fx.Node:
    """What a layer begins with: zeros unless it is told."""
    if site.value(i) is None:
        return site.builder.stored(np.zeros(shape, np.float32), f"{site.name}_state_{i}")
    if shape_of(site.tensor(i)) != shape:
        raise StretchError(f"its state has the shape {list(shape_of(site.tensor(i)))}, not {list(shape)}")
    return site.tensor(i)
