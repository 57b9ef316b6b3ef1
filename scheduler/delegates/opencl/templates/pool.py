"""Pooling over windows and over whole images."""

from scheduler.delegates.opencl.graph import KernelNode
from scheduler.delegates.opencl.launch import Ints, Launch, TensorArgument
from scheduler.delegates.opencl.lowering import KernelLowering, UnsupportedError
from scheduler.delegates.opencl.templates.parts import CPU_LIGHT, defines, describe, light_grid


def pool(state: KernelLowering, node: KernelNode) -> None:
    """MaxPool and AveragePool of images."""
    if len(state.shape(node.inputs[0])) != 4:
        raise UnsupportedError("windows over images only are pooled")
    if node.attrs.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise UnsupportedError("auto_pad is not computed, write the pads out")
    x, y = state.blocked(node.inputs[0]), state.result(node.output)
    n, c, h, w = x.image
    _, _, oh, ow = y.image
    kernel = tuple(node.attrs["kernel_shape"])
    stride = tuple(node.attrs.get("strides", (1, 1)))
    dilation = tuple(node.attrs.get("dilations", (1, 1)))
    top, left, bottom, right = node.attrs.get("pads", (0, 0, 0, 0))
    largest = node.op == "MaxPool"
    counts = int(not largest and bool(node.attrs.get("count_include_pad", 0)))
    if not largest and dilation != (1, 1):
        raise UnsupportedError("averages of dilated windows are not computed")
    blocks = state.blocking.blocks(c)
    more, grid, local = light_grid(state.traits, blocks, oh * ow, n)
    arguments = (
        TensorArgument(x),
        TensorArgument(y, written=True),
        Ints((h, w, blocks, 0)),
        Ints((oh, ow, 0, 0)),
        Ints((*kernel, *stride)),
        Ints((top, left, *dilation)),
        Ints((bottom, right, counts, 0)),
    )
    shape = f"{describe(node, x.shape)} k{kernel[0]}x{kernel[1]} s{stride[0]}x{stride[1]}"
    state.add(Launch("pool", node.name, defines(LARGEST=largest, **more), arguments, grid, shape, local=local))


def global_pool(state: KernelLowering, node: KernelNode) -> None:
    """GlobalAveragePool and GlobalMaxPool of images."""
    if len(state.shape(node.inputs[0])) != 4:
        raise UnsupportedError("images only are pooled")
    x, y = state.blocked(node.inputs[0]), state.result(node.output, may_be_plain=True)
    n, c, h, w = x.image
    blocks = state.blocking.blocks(c)
    macros = defines(LARGEST=node.op == "GlobalMaxPool", YPLAIN=y.plain)
    arguments = (TensorArgument(x), TensorArgument(y, written=True), Ints((h, w, blocks, c)))
    local = (CPU_LIGHT[0], 1) if state.traits.cpu else (min(32, state.traits.max_local), 1)
    state.add(Launch("global_pool", node.name, macros, arguments, (blocks, n), describe(node, x.shape), local=local))
