"""Small ONNX models for the tests of the opencl delegate, and how they are run."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, shape_inference

from scheduler.delegates.cpu import CpuDelegate
from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.opencl.compiled import OpenCLCompiled
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.launch import Ints, Launch, TensorArgument
from scheduler.delegates.opencl.schedule import Options, Schedules
from scheduler.delegates.opencl.templates import lower
from tests.scheduler.bundles import onnx_model

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


def residual_block(path, channels=16, size=9):
    """Convolution with batch-norm and ReLU, another, and the block's input added before the last ReLU."""
    c = channels
    norm = {f"bn.{key}": np.abs(numbers(c, seed=i)) + 0.5 for i, key in enumerate(("s", "b", "m", "v"))}
    weights = {"w1": numbers(c, c, 3, 3, seed=1, scale=0.1), "w2": numbers(c, c, 3, 3, seed=2, scale=0.1), "b2": numbers(c, seed=3), **norm}
    window = {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    nodes = [
        *(conv("x", "c1", "w1", **window), ("BatchNormalization", ["c1", *norm], "n1", {}), ("Relu", ["n1"], "r1", {})),
        *(conv("r1", "c2", "w2", "b2", **window), ("Add", ["c2", "x"], "a", {}), ("Relu", ["a"], "y", {})),
    ]
    return save(path, nodes, {"x": (1, c, size, size)}, ["y"], weights)


def squeeze_excite(path, channels=20, size=6):
    """Depthwise convolution with SiLU, a gate from its mean, and their product."""
    c = channels
    weights = {"w": numbers(c, 1, 3, 3, seed=1), "w1": numbers(8, c, 1, 1, seed=2), "w2": numbers(c, 8, 1, 1, seed=3)}
    nodes = [
        conv("x", "d", "w", group=c, pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        ("Sigmoid", ["d"], "s", {}),
        ("Mul", ["d", "s"], "silu", {}),
        ("GlobalAveragePool", ["silu"], "mean", {}),
        conv("mean", "g1", "w1", kernel_shape=[1, 1]),
        ("Relu", ["g1"], "g2", {}),
        conv("g2", "g3", "w2", kernel_shape=[1, 1]),
        ("HardSigmoid", ["g3"], "gate", {"alpha": 1 / 6, "beta": 0.5}),
        ("Mul", ["silu", "gate"], "y", {}),
    ]
    return save(path, nodes, {"x": (2, c, size, size)}, ["y"], weights)


def classifier(path, classes=5):
    """Stem, pool, two branches side by side, global mean, linear layer, softmax: a network in small."""
    weights = {"ws": numbers(16, 3, 5, 5, seed=1, scale=0.2), "wa": numbers(16, 16, 1, 1, seed=2, scale=0.3)}
    weights |= {"wb": numbers(8, 16, 3, 3, seed=3, scale=0.2), "wl": numbers(classes, 24, seed=4), "bl": numbers(classes, seed=5)}
    nodes = [
        conv("x", "s", "ws", strides=[2, 2], pads=[2, 2, 2, 2], kernel_shape=[5, 5]),
        ("Relu", ["s"], "r", {}),
        ("MaxPool", ["r"], "p", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        conv("p", "a", "wa", kernel_shape=[1, 1]),
        conv("p", "b", "wb", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        ("Concat", ["a", "b"], "c", {"axis": 1}),
        ("GlobalAveragePool", ["c"], "g", {}),
        ("Flatten", ["g"], "f", {"axis": 1}),
        ("Gemm", ["f", "wl", "bl"], "l", {"transB": 1}),
        ("Softmax", ["l"], "y", {"axis": 1}),
    ]
    return save(path, nodes, {"x": (2, 3, 30, 30)}, ["y"], weights)


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
    """Compilers of CPUs compute with half even where the device does not say so."""
    traits = open_device(()).traits
    if not (traits.fp16 or traits.cpu):
        pytest.skip("the device does not compute with half")


def launches(path, *, half=False, **options):
    delegate = OpenCLDelegate(half=half, options=Options(**options))
    return delegate.lower(delegate.prepare(path))


def kernels(path, **options):
    return [launch.kernel for launch in launches(path, **options)]


def cosine(kernel):
    """Template of an operator that the delegate does not have, which a kernel of this name computes."""

    def template(state, node):
        x, y = state.blocked(node.inputs[0]), state.result(node.output)
        n, c, h, w = x.image
        blocks = state.blocking.blocks(c)
        arguments = (TensorArgument(x), TensorArgument(y, written=True), Ints((blocks, h, w, 0)))
        state.add(Launch(kernel, node.name, (), arguments, (blocks, h * w, n), "cos"))

    return template


def as_gpu(path, *, half=False, **options):
    """Outputs of a model with the layout, work-groups and split sums of a GPU, and other traits that are given, computed by whatever device there is; its launches."""
    device = open_device(())
    more = {"cpu": False} | {name: options.pop(name) for name in ("images", "max_local", "max_sizes", "cpu") if name in options}
    traits = replace(device.traits, id="gpu", lanes=4, blocks_inside=False, registers=24, local=(16, 4, 1), **more)
    device = replace(device, traits=traits)
    graph = OpenCLDelegate().prepare(path)
    launches = lower(graph, traits.blocking(half), traits, Options(**options), Schedules(traits))
    compiled = OpenCLCompiled(device, graph, launches, half=half)
    return compute(compiled), compiled.launches
