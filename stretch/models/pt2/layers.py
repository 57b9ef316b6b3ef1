"""Calls that have weights as torch's modules, under the names that the weights have."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from predictors.errors import StretchError
from stretch.models.builder import shape_of
from stretch.models.pt2.file import Stored
from stretch.models.pt2.site import Site, Value, rule

_BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def _stored(site: Site, *names: str) -> dict[str, Stored | None]:
    """Arguments that the archive stores, None for one that is left out; none at all where one is computed."""
    stored = {name: site.stored(name) for name in names}
    return stored if all(item or site.arguments.get(name) is None for name, item in stored.items()) else {}


def _holding(site: Site, module: nn.Module, tensors: Mapping[str, Stored | None], x: str = "input") -> Value:
    """The module with these very parameters and statistics, in their place; None for one that it has not."""
    home = ""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        current, value = getattr(module, name), tensor.value
        if current.shape != value.shape or not value.is_floating_point():
            raise StretchError(f"`{tensor.name[:80]}` has the shape {list(value.shape)}, {list(current.shape)} are needed")
        if isinstance(current, nn.Parameter):
            setattr(module, name, value if isinstance(value, nn.Parameter) else nn.Parameter(value))
        else:
            setattr(module, name, value.detach())
        home = home or tensor.name.rpartition(".")[0] or tensor.name
    return site.called(module, home, x)


def _each(value: Any, axes: int) -> Any:
    """A number for each axis of a window; torch takes one for all, or a word."""
    if isinstance(value, str):
        return value
    numbers = [int(n) for n in value] if isinstance(value, list | tuple) else [int(value)]
    return numbers * axes if len(numbers) == 1 else numbers


@rule("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _convolution(site: Site) -> Value:
    tensors = _stored(site, "weight", "bias")
    weight = tensors.get("weight")
    if weight is None or weight.value.dim() not in (3, 4, 5) or len(shape_of(site.x)) != weight.value.dim():
        return None
    (first, second, *kernel), groups = weight.value.shape, int(site.arguments["groups"])
    if groups < 1:
        raise StretchError(f"it has {groups} groups")
    transposed = bool(site.arguments.get("transposed", "transpose" in site.name))
    windows = ("stride", "padding", "dilation", *(["output_padding"] if transposed else []))
    module = getattr(nn, f"Conv{'Transpose' if transposed else ''}{len(kernel)}d")(
        *((first, second * groups) if transposed else (second * groups, first)),
        tuple(kernel),
        groups=groups,
        bias=tensors["bias"] is not None,
        device="meta",
        **{name: _each(site.arguments[name], len(kernel)) for name in windows},
    )
    return _holding(site, module, tensors)


@rule("batch_norm", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit_functional", "native_batch_norm", "cudnn_batch_norm")
def _batch_norm(site: Site) -> Value:
    """With the statistics that the archive holds, whichever mode the network was exported in."""
    names = ("weight", "bias", "running_mean", "running_var")
    tensors = _stored(site, *names)
    if not all(tensors.get(name) for name in names[2:]) or (tensors["weight"] is None) != (tensors["bias"] is None):
        return None
    shape, eps, momentum = shape_of(site.x), site.arguments.get("eps", site.arguments.get("epsilon")), site.arguments.get("momentum", 0.1)
    return _holding(site, _BATCH_NORMS[len(shape)](shape[1], float(eps), float(momentum), tensors["weight"] is not None), tensors)


@rule("linear")
def _linear(site: Site) -> Value:
    tensors = _stored(site, "weight", "bias")
    return _layer(site, "input", tensors["weight"], tensors["bias"]) if tensors else None


@rule("addmm", "mm")
def _linear_decomposed(site: Site) -> Value:
    """Bias + x · weight, or that product alone, where the weight was turned before."""
    weight, biased = site.stored("mat2"), site.name == "addmm"
    bias = site.stored("self") if biased else None
    if weight is None or any(site.arguments.get(name, 1) != 1 for name in ("beta", "alpha")):
        return None
    if biased and (bias is None or bias.value.shape != weight.value.shape[1:]):
        return None
    turned = nn.Parameter(weight.value.detach().t().contiguous())
    return _layer(site, "mat1" if biased else "self", Stored(weight.name, turned), bias)


def _layer(site: Site, x: str, weight: Stored | None, bias: Stored | None) -> Value:
    if weight is None or weight.value.dim() != 2:
        return None
    module = nn.Linear(weight.value.shape[1], weight.value.shape[0], bias is not None, device="meta")
    return _holding(site, module, {"weight": weight, "bias": bias}, x)


@rule("layer_norm", "native_layer_norm")
def _layer_norm(site: Site) -> Value:
    tensors = _stored(site, "weight", "bias")
    if not tensors or (tensors["bias"] is not None and tensors["weight"] is None):
        return None
    shape, has = [int(n) for n in site.arguments["normalized_shape"]], [tensor is not None for tensor in tensors.values()]
    return _holding(site, nn.LayerNorm(shape, float(site.arguments["eps"]), *has), tensors)


@rule("group_norm")
def _group_norm(site: Site) -> Value:
    tensors = _stored(site, "weight", "bias")
    if not tensors or (tensors["weight"] is None) != (tensors["bias"] is None):
        return None
    groups, channels = int(site.arguments["num_groups"]), shape_of(site.x)[1]
    if groups < 1 or channels % groups:
        raise StretchError(f"it has {groups} groups of {channels} channels")
    return _holding(site, nn.GroupNorm(groups, channels, float(site.arguments["eps"]), tensors["weight"] is not None), tensors)


@rule("prelu", "_prelu_kernel")
def _prelu(site: Site) -> Value:
    weight = site.stored("weight")
    return None if weight is None else _holding(site, nn.PReLU(weight.value.numel()), {"weight": weight}, "self")
