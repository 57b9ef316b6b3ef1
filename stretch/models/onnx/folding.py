"""Stored numbers that a layer's result is multiplied by or that are added to it, as part of its weights."""

import copy
import operator

import numpy as np
import torch
from torch import fx, nn

from predictors.errors import StretchError
from stretch.models.builder import filled, shape_of
from stretch.models.onnx.site import OnnxSite, Value, rule


def linear(weight: np.ndarray, bias: np.ndarray | None) -> nn.Module:
    """A linear layer; `weight` is out × in, `bias` a number for each output or one for all."""
    module = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    return filled(module, weight=weight, bias=None if bias is None else np.broadcast_to(bias, weight.shape[:1]))


@rule("Gemm")
def _gemm(site: OnnxSite) -> fx.Node:
    """Alpha · A · B + beta · C (ONNX Gemm)."""
    weight, bias = site.known(1, "weight"), site.optional(2, "bias")
    if site.attrs.get("transA", 0) or weight.ndim != 2 or len(site.shape) != 2:
        raise StretchError("it turns what it reads, or reads no matrix")
    weight = (weight if site.attrs.get("transB", 0) else weight.T) * np.float32(site.attrs.get("alpha", 1.0))
    if bias is not None:
        bias = bias * np.float32(site.attrs.get("beta", 1.0))
        if bias.size not in (1, weight.shape[0]) or bias.shape[-1:] not in ((), (1,), (weight.shape[0],)):
            raise StretchError(f"its bias has the shape {list(bias.shape)}, not one number a column")
        bias = bias.reshape(-1)
    return site.builder.module(linear(weight, bias), site.x, site.name)


@rule("MatMul")
def _matmul(site: OnnxSite) -> fx.Node:
    right = site.value(1)
    if isinstance(right, np.ndarray) and right.ndim == 2 and isinstance(site.value(0), fx.Node):
        return site.builder.module(linear(right.T, None), site.x, site.name)
    return site.builder.call(torch.matmul, site.tensor(0), site.tensor(1))


@rule("Einsum")
def _einsum(site: OnnxSite) -> fx.Node:
    tensors = [site.tensor(i) for i in range(len(site.inputs))]
    return site.builder.call(torch.einsum, str(site.attrs.get("equation", "")), *tensors)


@rule("Det")
def _determinant(site: OnnxSite) -> fx.Node:
    return site.builder.call(torch.det, site.x)


#: Says of a node that it is a product of weights that are still in steps: what follows scales it.
UNSCALED = "unscaled"

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def added(site: OnnxSite, x: Value, bias: Value) -> fx.Node | None:
    """A product of matrices, or one of whole numbers, with these numbers as its bias; None for anything else."""
    if not isinstance(x, fx.Node) or not isinstance(bias, np.ndarray):
        return None
    layer = site.builder.behind(x)
    if isinstance(layer, nn.Linear) and layer.bias is None and bias.shape == (layer.out_features,):
        return _again(site, x, linear(layer.weight.detach().numpy(), bias.astype(np.float32)))
    if not isinstance(layer, _CONVOLUTIONS) or layer.bias is not None or not x.meta.get(UNSCALED):
        return None
    numbers = _by_channel(x, layer, bias)
    return None if numbers is None else _again(site, x, _convolution(layer, layer.weight.detach().numpy(), numbers))


def multiplied(site: OnnxSite, x: Value, factor: Value) -> fx.Node | None:
    """A product of whole numbers with its weights in another scale; None for anything else."""
    if not isinstance(x, fx.Node) or not isinstance(factor, np.ndarray) or not x.meta.get(UNSCALED):
        return None
    layer = site.builder.behind(x)
    assert isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    numbers = _by_channel(x, layer, factor)
    if numbers is None:
        return None
    weight = layer.weight.detach().numpy()
    weight = weight * numbers.reshape(-1, *(1,) * (weight.ndim - 1))
    bias = None if layer.bias is None else layer.bias.detach().numpy() * numbers
    return _again(site, x, linear(weight, bias) if isinstance(layer, nn.Linear) else _convolution(layer, weight, bias))


def times(site: OnnxSite, x: fx.Node, factor: np.ndarray) -> fx.Node:
    """A tensor times stored numbers, by its weights where it is a product of whole ones."""
    if factor.size == 1 and factor.item() == 1:
        return x
    result = multiplied(site, x, factor)
    if result is not None:
        return result
    return site.builder.call(operator.mul, x, factor.item() if factor.size == 1 else site.builder.stored(factor, f"{site.name}_scale"))


def _again(site: OnnxSite, x: fx.Node, module: nn.Module) -> fx.Node:
    """What a layer gives, by another module in its place."""
    read = x.args[0]
    assert isinstance(read, fx.Node)
    built = site.builder.module(module, read, str(x.target))
    built.meta[UNSCALED] = x.meta.get(UNSCALED, False)
    return built


def _convolution(layer: nn.Module, weight: np.ndarray, bias: np.ndarray | None) -> nn.Module:
    """A convolution like another one, with these weights."""
    convolution = copy.deepcopy(layer)
    convolution.bias = None if bias is None else nn.Parameter(torch.empty(len(weight)))
    return filled(convolution, weight=weight, bias=bias)


def _by_channel(x: fx.Node, layer: nn.Module, numbers: np.ndarray) -> np.ndarray | None:
    """Numbers that go with each channel that a layer gives; None where they differ otherwise."""
    rank, axis = len(shape_of(x)), -1 if isinstance(layer, nn.Linear) else 1
    if numbers.ndim > rank or numbers.dtype.kind not in "fiu":
        return None
    whole = numbers.reshape((1,) * (rank - numbers.ndim) + numbers.shape)
    if whole.size not in (1, shape_of(x)[axis]) or whole.size != whole.shape[axis]:
        return None
    return np.broadcast_to(whole.reshape(-1), (shape_of(x)[axis],)).astype(np.float32)
