"""One function an operator, which turns a node into launches; `TEMPLATES` finds it by the operator's name."""

from collections.abc import Callable
from pathlib import Path

from scheduler.delegates.opencl.graph import KernelNode
from scheduler.delegates.opencl.lowering import KernelLowering
from scheduler.delegates.opencl.programs import FOLDERS
from scheduler.delegates.opencl.templates import conv, elementwise, move, pool, rows

Template = Callable[[KernelLowering, KernelNode], None]

TEMPLATES: dict[str, Template] = {
    "AveragePool": pool.pool,
    "Binary": elementwise.binary,
    "ChannelShuffle": move.shuffle,
    "Concat": move.concat,
    "Conv": conv.convolution,
    "Flatten": move.reshape,
    "Gemm": conv.linear,
    "GlobalAveragePool": pool.global_pool,
    "GlobalMaxPool": pool.global_pool,
    "Identity": move.identity,
    "LayerNormalization": rows.layer_norm,
    "LogSoftmax": rows.softmax,
    "MatMul": rows.matmul,
    "MaxPool": pool.pool,
    "Pad": move.pad,
    "ReduceMean": rows.reduce_mean,
    "Reshape": move.reshape,
    "Resize": move.resize,
    "ScaleShift": elementwise.scale_shift,
    "Slice": move.slice_,
    "Softmax": rows.softmax,
    "Squeeze": move.reshape,
    "Transpose": rows.transpose,
    "Unary": elementwise.unary,
    "Unsqueeze": move.reshape,
}


def add_template(op: str, template: Template, kernels: Path) -> None:
    """Let the delegate compute one more operator, from outside of this package."""
    TEMPLATES[op] = template
    if kernels not in FOLDERS:
        FOLDERS.append(kernels)
