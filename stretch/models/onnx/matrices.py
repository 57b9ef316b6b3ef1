"""Products of matrices of ONNX as torch's linear layers and functions."""

import numpy as np
import torch
from torch import fx, nn

from predictors.errors import StretchError
from stretch.models.builder import filled
from stretch.models.onnx.site import Site, rule


def linear(weight: np.ndarray, bias: np.ndarray | None) -> nn.Module:
    """A linear layer; `weight` is out × in, `bias` a number for each output or one for all."""
    module = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    return filled(module, weight=weight, bias=None if bias is None else np.broadcast_to(bias, weight.shape[:1]))


@rule("Gemm")
def _gemm(site: Site) -> fx.Node:
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
def _matmul(site: Site) -> fx.Node:
    right = site.value(1)
    if isinstance(right, np.ndarray) and right.ndim == 2 and isinstance(site.value(0), fx.Node):
        return site.builder.module(linear(right.T, None), site.x, site.name)
    return site.builder.call(torch.matmul, site.tensor(0), site.tensor(1))


@rule("Einsum")
def _einsum(site: Site) -> fx.Node:
    tensors = [site.tensor(i) for i in range(len(site.inputs))]
    return site.builder.call(torch.einsum, str(site.attrs.get("equation", "")), *tensors)


@rule("Det")
def _determinant(site: Site) -> fx.Node:
    return site.builder.call(torch.det, site.x)
