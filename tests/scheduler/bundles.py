"""Small real bundles, built with onnx.helper, for the tests of the scheduler and of the verbs that run bundles."""

import hashlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from scheduler.bundle.manifest import SCHEMA, FileEntry, JoinEntry, Manifest, ModelInfo, SubgraphEntry, Tensor, WeightsInfo
from scheduler.formats.onnx.file import state_operator

SIDE = 8


def onnx_model(nodes, inputs, outputs, weights=(), opset=20):
    """A model of these nodes; shapes of inputs and outputs by name, weights as arrays by name."""
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in values.items()] for values in (inputs, outputs)]
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in dict(weights).items()]
    graph = helper.make_graph(nodes, "graph", *ends, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


#: Attributes of a 3×3 convolution without bias.
CONV = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1, "bias": False}


def stating(kind, node, attrs=None):
    """The node with its operator stated in metadata, as in exported files."""
    state_operator(node, kind, attrs or {})
    return node


@dataclass
class Builder:
    """Collects a bundle: subgraphs of convolutions, joined by concat or sum, then a head."""

    path: Path
    batch: int = 1
    seed: int = 0
    nodes: list = field(default_factory=list)
    weights: dict = field(default_factory=dict)
    tensors: list = field(default_factory=list)
    subgraphs: list = field(default_factory=list)
    joins: list = field(default_factory=list)
    files: dict = field(default_factory=dict)
    inputs: tuple = ("x",)

    def __post_init__(self):
        self.path.mkdir(parents=True, exist_ok=True)
        self.rng = np.random.default_rng(self.seed)
        self.shapes = dict.fromkeys(self.inputs, (self.batch, 3, SIDE, SIDE))

    def conv(self, name, segment, processor, read, write, channels):
        """Add a subgraph with a 3×3 convolution and a ReLU."""
        n, c, h, w = self.shapes[read]
        weight = {f"{name}.w": self.rng.normal(0, 0.3, (channels, c, 3, 3)).astype(np.float32)}
        window = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1], "group": 1}
        node = helper.make_node("Conv", [read, f"{name}.w"], [f"{name}.c"], name=f"{name}/conv", **window)
        nodes = [
            stating("conv", node, CONV | {"out_channels": channels}),
            stating("relu", helper.make_node("Relu", [f"{name}.c"], [write], name=f"{name}/relu")),
        ]
        self._subgraph(name, segment, processor, (read,), {write: (n, channels, h, w)}, nodes, weight, n * channels * h * w * c * 9)

    def head(self, name, segment, processor, read, write, classes):
        """Add a subgraph with a global mean, a flatten and a linear layer."""
        n, c, _, _ = self.shapes[read]
        weight = {f"{name}.w": self.rng.normal(0, 0.5, (classes, c)).astype(np.float32)}
        pool = helper.make_node("GlobalAveragePool", [read], [f"{name}.p"], name=f"{name}/pool")
        linear = helper.make_node("Gemm", [f"{name}.f", f"{name}.w"], [write], name=f"{name}/linear", transB=1)
        nodes = [
            stating("global_avg_pool", pool, {"keepdims": True}),
            stating("flatten", helper.make_node("Flatten", [f"{name}.p"], [f"{name}.f"], name=f"{name}/flatten")),
            stating("linear", linear, {"out_features": classes, "bias": False}),
        ]
        self._subgraph(name, segment, processor, (read,), {write: (n, classes)}, nodes, weight, n * classes * c)

    def mix(self, name, segment, processor, reads, sums, positives):
        """Add a subgraph with two outputs: the sum of tensors of one shape, and its ReLU."""
        shape = self.shapes[reads[0]]
        nodes = [
            stating("add", helper.make_node("Sum", list(reads), [sums], name=f"{name}/sum")),
            stating("relu", helper.make_node("Relu", [sums], [positives], name=f"{name}/relu")),
        ]
        self._subgraph(name, segment, processor, tuple(reads), {sums: shape, positives: shape}, nodes, {}, 0)

    def join(self, name, segment, kind, reads, write):
        shapes = [self.shapes[r] for r in reads]
        self.shapes[write] = (shapes[0][0], sum(s[1] for s in shapes) if kind == "concat" else shapes[0][1], *shapes[0][2:])
        node = helper.make_node("Concat", reads, [write], axis=1) if kind == "concat" else helper.make_node("Sum", reads, [write])
        self.nodes.append(stating("concat" if kind == "concat" else "add", node))
        self.joins.append(JoinEntry(name, segment, kind, tuple(reads), write))

    def _subgraph(self, name, segment, processor, reads, writes, nodes, weights, macs):
        self.shapes |= writes
        self.nodes += nodes
        self.weights |= weights
        file = f"{name}.onnx"
        self._save(file, nodes, weights, reads, tuple(writes))
        self.subgraphs.append(SubgraphEntry(name, segment, processor, file, reads, tuple(writes), macs, predicted_ms=1.0))

    def _save(self, file, nodes, weights, reads, writes):
        inputs, outputs = ({name: self.shapes[name] for name in names} for names in (reads, writes))
        model = onnx_model(nodes, inputs, outputs, weights)
        onnx.checker.check_model(model)
        onnx.save(model, str(self.path / file))
        self.files[file] = None

    def design(self):
        """A design that leads to these subgraphs."""
        segments = []
        for name in dict.fromkeys(s.segment for s in self.subgraphs):
            parts = [s for s in self.subgraphs if s.segment == name]
            kinds = [j.kind for j in self.joins if j.segment == name]
            defaults = {"depth": 1, "entry": "none", "partition": 0, "align": 1}
            branches = [defaults | {"processor": s.processor, "width": self.shapes[s.outputs[0]][1]} for s in parts]
            ends = {"start": parts[0].inputs[0], "end": parts[0].outputs[0]}
            segments.append({"name": name, **ends, "branches": branches, "join": (*kinds, "none")[0]})
        return {"model": "tiny", "device": "pixel6", "segments": segments, "version": 1}

    def write(self, *outputs):
        self._save("model.onnx", self.nodes, self.weights, self.inputs, outputs)
        macs = sum(s.macs for s in self.subgraphs)
        (self.path / "controls").mkdir(exist_ok=True)
        for control in ("original", "sequential_same_macs"):
            self._save(f"controls/{control}.onnx", self.nodes, self.weights, self.inputs, outputs)
        for name in self.shapes:
            readers = [s.name for s in self.subgraphs if name in s.inputs] + [j.name for j in self.joins if name in j.inputs]
            writers = [s.name for s in self.subgraphs if name in s.outputs] + [j.name for j in self.joins if j.output == name]
            shape = self.shapes[name]
            layout = "NC" if len(shape) == 2 else "NCHW"
            readers += ["output"] if name in outputs else []
            self.tensors.append(Tensor(name, shape, writers[0] if writers else "input", tuple(readers), layout=layout))
        manifest = Manifest(
            schema=SCHEMA,
            version="0.1.0",
            model=ModelInfo("tiny", self.shapes[self.inputs[0]], self.shapes[outputs[0]], macs, 1000, macs, 1000),
            device="pixel6",
            calibrated=False,
            weights=WeightsInfo("random"),
            design=self.design(),
            inputs=tuple(self.inputs),
            outputs=outputs,
            tensors=tuple(self.tensors),
            subgraphs=tuple(self.subgraphs),
            joins=tuple(self.joins),
            whole="model.onnx",
            controls={c: f"controls/{c}.onnx" for c in ("original", "sequential_same_macs")},
            control_macs={"original": macs, "sequential_same_macs": macs},
            predicted={},
            recommended="branched",
            checks={},
            files={name: file_entry(self.path / name) for name in self.files},
        )
        (self.path / "bundle.json").write_bytes(msgspec.json.encode(manifest))
        return self.path


def file_entry(file):
    data = file.read_bytes()
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


@cache
def _two_branches(batch, processors, seed):
    """Files of the bundle, cached: many tests need a copy, and building takes longer than writing."""
    with TemporaryDirectory() as folder:
        b = Builder(Path(folder), batch, seed)
        b.conv("stem", "stem", processors[0], "x", "t0", 6)
        for i, p in enumerate(processors):
            b.conv(f"s1.{p}", "s1", p, "t0", f"s1.{p}.y", 4 + 2 * i)
        b.join("s1.join", "s1", "concat", [f"s1.{p}.y" for p in processors], "t1")
        for p in processors:
            b.conv(f"s2.{p}", "s2", p, "t1", f"s2.{p}.y", 8)
        b.join("s2.join", "s2", "sum", [f"s2.{p}.y" for p in processors], "t2")
        b.head("head", "head", processors[0], "t2", "y", 5)
        return {file.relative_to(folder): file.read_bytes() for file in b.write("y").rglob("*.*")}


def two_branches(path, batch=1, processors=("cpu", "gpu"), seed=0):
    """stem → branches on each processor → concat → branches → sum → head."""
    (path / "controls").mkdir(parents=True, exist_ok=True)
    for name, content in _two_branches(batch, processors, seed).items():
        (path / name).write_bytes(content)
    return path


def one_after_the_other(path):
    """stem on the cpu → three convolutions on the gpu → head on the cpu."""
    b = Builder(path)
    b.conv("stem", "stem", "cpu", "x", "t0", 6)
    for number in (1, 2, 3):
        b.conv(f"s{number}.gpu", f"s{number}", "gpu", f"t{number - 1}", f"t{number}", 6)
    b.head("head", "head", "cpu", "t3", "y", 5)
    return b.write("y")


def several_ends(path):
    """Two inputs, a branch on each, one subgraph that reads both and writes two tensors, a head on each: two outputs."""
    b = Builder(path, inputs=("left", "right"))
    b.conv("l.cpu", "l", "cpu", "left", "l.y", 4)
    b.conv("r.gpu", "r", "gpu", "right", "r.y", 4)
    b.mix("m.cpu", "m", "cpu", ["l.y", "r.y"], "m.sum", "m.positive")
    b.head("h1.gpu", "h1", "gpu", "m.sum", "first", 5)
    b.head("h2.cpu", "h2", "cpu", "m.positive", "second", 3)
    return b.write("first", "second")


def edit(path, change):
    """Rewrite bundle.json after `change` has worked on it as plain data."""
    file = path / "bundle.json"
    data = msgspec.json.decode(file.read_bytes())
    change(data)
    file.write_bytes(msgspec.json.encode(data))
