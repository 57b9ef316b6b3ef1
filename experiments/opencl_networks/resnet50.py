"""ResNet-50 as an ONNX file with random weights, made with numpy alone, for machines without torchvision.

He et al., "Deep Residual Learning for Image Recognition" (2016), table 1, with the stride in the 3×3 convolution.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: Blocks and inner width of each stage.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
EXPANSION = 4
CLASSES = 1000


class _Builder:
    """Collects nodes and weights; batch-norms count as folded."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def conv(self, x: str, name: str, c: int, m: int, kernel: int, stride: int, gain: float = 2.0) -> str:
        """A convolution whose output has about the variance of its input."""
        weight = self.random.normal(0, (gain / (c * kernel * kernel)) ** 0.5, (m, c, kernel, kernel))
        for key, values in (("weight", weight), ("bias", self.random.normal(0, 0.1, m))):
            self.weights.append(numpy_helper.from_array(values.astype(np.float32), f"{name}.{key}"))
        pads, strides = [kernel // 2] * 4, [stride, stride]
        return self.node("Conv", [x, f"{name}.weight", f"{name}.bias"], name, kernel_shape=[kernel, kernel], pads=pads, strides=strides)


def save_resnet50(path: Path, batch: int = 1, size: int = 224, seed: int = 0) -> Path:
    """Write ResNet-50; the last convolution of each block is small, so that numbers stay of one order through the network."""
    b = _Builder(seed)
    x = b.node("Relu", [b.conv("x", "stem", 3, 64, 7, 2)], "stem.relu")
    x = b.node("MaxPool", [x], "stem.pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for s, (blocks, width) in enumerate(STAGES, start=1):
        for i in range(blocks):
            name, stride = f"stage{s}.{i}", 2 if i == 0 and s > 1 else 1
            y = b.node("Relu", [b.conv(x, f"{name}.a", channels, width, 1, 1)], f"{name}.a.relu")
            y = b.node("Relu", [b.conv(y, f"{name}.b", width, width, 3, stride)], f"{name}.b.relu")
            y = b.conv(y, f"{name}.c", width, width * EXPANSION, 1, 1, gain=0.25)
            if i == 0:
                x = b.conv(x, f"{name}.skip", channels, width * EXPANSION, 1, stride, gain=1.0)
            x = b.node("Relu", [b.node("Add", [y, x], f"{name}.add")], f"{name}.relu")
            channels = width * EXPANSION
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x], "mean")], "flat", axis=1)
    weight = b.random.normal(0, channels**-0.5, (CLASSES, channels)).astype(np.float32)
    b.weights += [numpy_helper.from_array(weight, "fc.weight"), numpy_helper.from_array(np.zeros(CLASSES, np.float32), "fc.bias")]
    b.node("Gemm", [x, "fc.weight", "fc.bias"], "y", transB=1)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        b.nodes,
        "resnet50",
        [value("x", TensorProto.FLOAT, (batch, 3, size, size))],
        [value("y", TensorProto.FLOAT, (batch, CLASSES))],
        b.weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    return path
