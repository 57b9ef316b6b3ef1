"""Recurrent layers of ONNX as torch's functions."""

import operator
from typing import Any

import numpy as np
import torch
from torch import fx

from predictors.errors import StretchError
from stretch.models.builder import shape_of
from stretch.models.onnx.site import OnnxSite, rule

#: Where torch's gates stand among ONNX's: input, output, forget, cell there, input, forget, cell, output here; update,
#: reset, hidden there, reset, update, new here.
_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
_FUNCTIONS: dict[str, Any] = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}

#: Activations that torch's layers have, of each direction.
_OWN = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _words(values: Any) -> list[str]:
    return [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in values]


def _check(site: OnnxSite, ways: int) -> None:
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
    _check(site, ways)
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
