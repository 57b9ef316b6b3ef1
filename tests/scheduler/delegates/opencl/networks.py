"""Small ONNX models for the tests of the opencl delegate, and functions that run them."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, shape_inference

from scheduler.delegates.cpu import CpuDelegate
from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.opencl.compiled import OpenCLCompiled
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.launch import Launch, TensorArgument
from scheduler.delegates.opencl.schedule import Options, Schedules
from scheduler.delegates.opencl.templates import lower
from stretch.export.onnx import to_onnx
from tests.predictors.networks import Net, convolution
from tests.scheduler.bundles import onnx_model
from tests.scheduler.delegates import graphs

OPSET = 20


def numbers(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def save(path, nodes, inputs, outputs, weights):
    """Write a model; nodes are (operator, inputs, output, attributes), shapes of the outputs are inferred."""
    built = [helper.make_node(op, ins, [out], name=out, **attrs) for op, ins, out, attrs in nodes]
    model = onnx_model(built, inputs, dict.fromkeys(outputs), weights, OPSET)
    onnx.save(shape_inference.infer_shapes(model, strict_mode=True, data_prop=True), str(path))
    return path


def conv(x, out, weight, bias="", **attrs):
    return ("Conv", [x, weight, *([bias] if bias else [])], out, attrs)


def exported(path, net):
    """Write a network with random weights as ONNX file."""
    graph = net.graph("net")
    weights = graphs.weights_of(graph, np.random.default_rng(1))
    for op in graph.ops:
        if op.kind in ("conv", "linear"):
            weights[op.name]["weight"] /= np.sqrt(weights[op.name]["weight"][0].size)
    onnx.save(to_onnx(graph, weights), str(path))
    return path


def residual_block(path, channels=16, size=9):
    """Convolution with batch-norm and ReLU, another, and the block's input added before the last ReLU."""
    net = Net(1, channels, size, size)
    net.conv(channels, 3)
    net.add("conv", **convolution("", "", channels, 3, bias=True).attrs)
    net.add("add", net.last, "input")
    net.add("relu")
    return exported(path, net)


def squeeze_excite(path, channels=20, size=6):
    """Depthwise convolution with SiLU, a gate from its mean, and their product."""
    net = Net(2, channels, size, size)
    net.add("conv", **convolution("", "", channels, 3, groups=channels).attrs)
    scaled = net.add("silu")
    net.add("global_avg_pool", keepdims=True)
    for width, gate in ((8, "relu"), (channels, "hard_sigmoid")):
        net.add("conv", **convolution("", "", width).attrs)
        net.add(gate)
    net.add("mul", scaled, net.last)
    return exported(path, net)


def classifier(path, classes=5):
    """A small classifier: stem, pool, two parallel branches, global mean, linear layer, softmax."""
    net = Net(2, 3, 30, 30)
    net.add("conv", **convolution("", "", 16, 5, 2).attrs)
    net.add("relu")
    pooled = net.add("max_pool", kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1), dilation=(1, 1), ceil_mode=False)
    net.add("concat", *(net.add("conv", pooled, **convolution("", "", width, kernel).attrs) for width, kernel in ((16, 1), (8, 3))))
    net.head(classes)
    net.add("softmax")
    return exported(path, net)


def run(delegate, path, seed=9):
    """Outputs for normally distributed inputs; NaN where nothing was written."""
    return compute(delegate.compile(path), seed)


def compute(compiled, seed=9):
    inputs = [numbers(*shape, seed=seed + i) for i, shape in enumerate(compiled.inputs.values())]
    outputs = [np.full(shape, np.nan, np.float32) for shape in compiled.outputs.values()]
    compiled.run(inputs, outputs)
    return outputs


def error(path, *, half=False, planner=None, oracle=CpuDelegate, **options):
    """Largest difference from ONNX Runtime, or another delegate, relative to the largest element."""
    more = {} if planner is None else {"planner": planner}
    got = run(OpenCLDelegate(half=half, options=Options(**options), **more), path)
    expected = run(oracle(), path)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(got, expected, strict=True))


def needs_half():
    """Skip the test on a GPU without half precision; compilers of CPUs always support it."""
    traits = open_device(()).traits
    if not (traits.fp16 or traits.cpu):
        pytest.skip("the device does not compute with half")


def launches(path, *, half=False, **options):
    delegate = OpenCLDelegate(half=half, options=Options(**options))
    return delegate.lower(delegate.prepare(path))


def kernels(path, **options):
    return [launch.kernel for launch in launches(path, **options)]


def cosine(kernel):
    """Template of `Cos`, which the delegate lacks, with a kernel of this name."""

    def template(state, node):
        x, y = state.blocked(node.inputs[0]), state.result(node.output)
        n, c, h, w = x.image
        blocks = state.blocking.blocks(c)
        arguments = (TensorArgument(x), TensorArgument(y, written=True), (blocks, h, w, 0))
        state.add(Launch(kernel, node.name, (), arguments, (blocks, h * w, n), "cos"))

    return template


def as_gpu(path, *, half=False, **options):
    """Outputs and launches of a model with a GPU's layout, work-groups, split sums and the given traits, on any device."""
    device = open_device(())
    more = {"cpu": False} | {name: options.pop(name) for name in ("images", "max_local", "max_sizes", "cpu") if name in options}
    traits = replace(device.traits, id="gpu", lanes=4, blocks_inside=False, registers=24, local=(16, 4, 1), **more)
    device = replace(device, traits=traits)
    graph = OpenCLDelegate().prepare(path)
    launches = lower(graph, traits.blocking(half), traits, Options(**options), Schedules(traits))
    compiled = OpenCLCompiled(device, graph, launches, half=half)
    return compute(compiled), compiled.launches
