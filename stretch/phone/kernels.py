"""Matching of an operator profile's lines to kernels: by the tensor's name, or by order if a delegate prints no names.

A delegate calls what it runs by its own names, such as ``Convolution (NHWC, F32)
IGEMM`` (XNNPACK) or ``convolution_2d 3 -> add 5`` (GPU), and in the order of the
file's operators. Lines and kernels are paired only where both rows have the same
kinds one after the other, so that no time is given to a kernel that it is not of.
"""

import re
from collections.abc import Sequence

from predictors.fusion import Kernel
from predictors.measurements.litert import Operator

#: The tensors that an operator of the runtime itself writes, and its number.
_NAMED = re.compile(r"\[(.*)\]:\d+")

#: What names of kernels that multiply begin with or contain, in this order: a depthwise convolution may be called one, too.
_WORDS = (
    ("depthwise", re.compile(r"depthwise|dwconv", re.I)),
    ("linear", re.compile(r"fully.?connected", re.I)),
    ("conv", re.compile(r"conv(olution)?(_2d| |\()|conv2d", re.I)),
)

#: Kinds of kernels that multiply, and what they are called here.
_KINDS = {"conv": "conv", "conv1x1": "conv", "grouped": "conv", "depthwise": "depthwise", "linear": "linear"}


def pair(operators: Sequence[Operator], kernels: Sequence[Kernel], order: Sequence[str]) -> list[tuple[Kernel, float]]:
    """Kernels with their times, ms; ambiguous ones are left out.

    Args:
        operators: Lines of the profile, in the order in which they ran.
        kernels: What the runtime is said to launch, as `predictors.fusion.fuse` gives it.
        order: Names of the tensors that the file's operators write, in its order.
    """
    if all(_NAMED.fullmatch(operator.name) for operator in operators):
        return _by_name(operators, kernels)
    place = {name: number for number, name in enumerate(order)}
    inside = sorted(kernels, key=lambda kernel: min((place[name] for name in kernel.ops if name in place), default=len(place)))
    wanted = [kernel for kernel in inside if kernel.cost.kind in _KINDS]
    lines = [(kind, operator) for operator in operators if (kind := _kind(operator)) is not None]
    same = len(wanted) == len(lines) and all(_alike(kernel, kind) for kernel, (kind, _) in zip(wanted, lines, strict=True))
    return [(kernel, line.ms) for kernel, (_, line) in zip(wanted, lines, strict=True)] if same else []


def _by_name(operators: Sequence[Operator], kernels: Sequence[Kernel]) -> list[tuple[Kernel, float]]:
    owner = {name: number for number, kernel in enumerate(kernels) for name in kernel.ops}
    times: dict[int, float] = {}
    for operator in operators:
        match = _NAMED.fullmatch(operator.name)
        # What pads or turns a tensor first is called after it.
        name = match[1].partition(".")[0] if match and match[1] not in owner else match[1] if match else ""
        if name in owner:
            times[owner[name]] = times.get(owner[name], 0.0) + operator.ms
    return [(kernels[number], ms) for number, ms in sorted(times.items()) if ms > 0]


def _kind(operator: Operator) -> str | None:
    return next((kind for kind, words in _WORDS if words.search(operator.kind)), None)


def _alike(kernel: Kernel, kind: str) -> bool:
    """Whether a line may be of a kernel: a convolution of one pixel is a matrix product, and a product of one group may be either."""
    kernel_kind = _KINDS[kernel.cost.kind]
    return kernel_kind == kind or (kernel.cost.pixels == 1 and {kernel_kind, kind} == {"conv", "linear"})
