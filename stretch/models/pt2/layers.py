"""Calls that have weights as torch's modules, under the names that the weights have."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from predictors.errors import StretchError
from stretch.models.builder import shape_of
from stretch.models.pt2.file import Stored
from stretch.models.pt2.site import Site, Value, rule

_CONVOLUTIONS = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_TRANSPOSED = {3: nn.ConvTranspose1d, 4: nn.ConvTranspose2d, 5: nn.ConvTranspose3d}
_BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def _holding(module: nn.Module, **tensors: Stored | None) -> nn.Module:
    """The module with these very parameters and statistics; None for one that it has not."""
    for name, given in tensors.items():
        if given is None:
            continue
        own, value = getattr(module, name), given.value
        if own.shape != value.shape or not value.is_floating_point():
            raise StretchError(f"`{given.name[:80]}` has the shape {list(value.shape)}, {list(own.shape)} are needed")
        if isinstance(own, nn.Parameter) and not isinstance(value, nn.Parameter):
            value = nn.Parameter(value)
        setattr(module, name, value if isinstance(own, nn.Parameter) else value.detach())
    return module


def _home(*tensors: Stored | None) -> str:
    """Name of the module that weights lie in."""
    found = next(each.name for each in tensors if each is not None)
    return found.rpartition(".")[0] or found


def _as_needed(site: Site, *names: str) -> bool:
    """Whether arguments are stored or left out, and not computed."""
    return all(site.given.get(name) is None or site.stored(name) is not None for name in names)


def _each(value: Any, axes: int) -> list[int]:
    """A number for each axis of a window; torch takes one for all."""
    found = [int(n) for n in value] if isinstance(value, list | tuple) else [int(value)]
    return found * axes if len(found) == 1 else found


@rule("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _convolution(site: Site) -> Value:
    weight, bias = site.stored("weight"), site.stored("bias")
    rank = weight.value.dim() if weight is not None else 0
    if weight is None or not _as_needed(site, "bias") or rank not in _CONVOLUTIONS or len(shape_of(site.x)) != rank:
        return None
    axes, groups = rank - 2, int(site.given["groups"])
    transposed = bool(site.given.get("transposed", "transpose" in site.operator._overloadpacket.__name__))
    stride, dilation = _each(site.given["stride"], axes), _each(site.given["dilation"], axes)
    padding = site.given["padding"]
    first, second = weight.value.shape[:2]
    if groups < 1:
        raise StretchError(f"it has {groups} groups")
    if transposed:
        module: nn.Module = _TRANSPOSED[rank](
            first,
            second * groups,
            tuple(weight.value.shape[2:]),
            stride,
            _each(padding, axes),
            _each(site.given["output_padding"], axes),
            groups,
            bias is not None,
            dilation,
            device="meta",
        )
    else:
        sides: Any = padding if isinstance(padding, str) else _each(padding, axes)
        module = _CONVOLUTIONS[rank](
            second * groups, first, tuple(weight.value.shape[2:]), stride, sides, dilation, groups, bias is not None, device="meta"
        )
    return site.called(_holding(module, weight=weight, bias=bias), _home(weight), "input")


@rule("batch_norm", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit_functional", "native_batch_norm", "cudnn_batch_norm")
def _batch_norm(site: Site) -> Value:
    """With the statistics that the archive holds, whichever mode the network was exported in."""
    names = ("weight", "bias", "running_mean", "running_var")
    tensors = {name: site.stored(name) for name in names}
    mean, variance = tensors["running_mean"], tensors["running_var"]
    if mean is None or variance is None or not _as_needed(site, *names) or (tensors["weight"] is None) != (tensors["bias"] is None):
        return None
    x = site.tensor("input")
    eps, momentum = site.given.get("eps", site.given.get("epsilon")), site.given.get("momentum", 0.1)
    norm = _BATCH_NORMS[len(shape_of(x))](shape_of(x)[1], float(eps), float(momentum), tensors["weight"] is not None)
    return site.called(_holding(norm, **tensors), _home(*tensors.values()), "input")


@rule("linear")
def _linear(site: Site) -> Value:
    weight, bias = site.stored("weight"), site.stored("bias")
    return None if weight is None or not _as_needed(site, "bias") else _layer(site, "input", weight, bias)


@rule("addmm")
def _linear_decomposed(site: Site) -> Value:
    """Bias + x · weight, where the weight was turned before."""
    weight, bias = site.stored("mat2"), site.stored("self")
    plain = all(site.given[name] == 1 for name in ("beta", "alpha"))
    if weight is None or bias is None or not plain or bias.value.shape != weight.value.shape[1:]:
        return None
    return _layer(site, "mat1", Stored(weight.name, _turned(weight.value)), bias)


@rule("mm")
def _product(site: Site) -> Value:
    weight = site.stored("mat2")
    return None if weight is None else _layer(site, "self", Stored(weight.name, _turned(weight.value)), None)


def _turned(matrix: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(matrix.detach().t().contiguous())


def _layer(site: Site, x: str, weight: Stored, bias: Stored | None) -> Value:
    if weight.value.dim() != 2:
        return None
    module = nn.Linear(weight.value.shape[1], weight.value.shape[0], bias is not None, device="meta")
    return site.called(_holding(module, weight=weight, bias=bias), _home(weight), x)


@rule("layer_norm", "native_layer_norm")
def _layer_norm(site: Site) -> Value:
    weight, bias = site.stored("weight"), site.stored("bias")
    if not _as_needed(site, "weight", "bias") or (weight is None and bias is not None):
        return None
    shape: Sequence[int] = [int(n) for n in site.given["normalized_shape"]]
    module = nn.LayerNorm(shape, float(site.given["eps"]), weight is not None, bias is not None)
    name = _home(weight) if weight is not None else site.module
    return site.called(_holding(module, weight=weight, bias=bias), name, "input")


@rule("group_norm")
def _group_norm(site: Site) -> Value:
    weight, bias = site.stored("weight"), site.stored("bias")
    if not _as_needed(site, "weight", "bias") or (weight is None) != (bias is None):
        return None
    groups, channels = int(site.given["num_groups"]), shape_of(site.tensor("input"))[1]
    if groups < 1 or channels % groups:
        raise StretchError(f"it has {groups} groups of {channels} channels")
    module = nn.GroupNorm(groups, channels, float(site.given["eps"]), weight is not None)
    return site.called(_holding(module, weight=weight, bias=bias), _home(weight) if weight is not None else site.module, "input")


@rule("prelu", "_prelu_kernel")
def _prelu(site: Site) -> Value:
    weight = site.stored("weight")
    return None if weight is None else site.called(_holding(nn.PReLU(weight.value.numel()), weight=weight), _home(weight), "self")
