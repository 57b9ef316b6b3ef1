"""Every convolution of some networks on OpenCL (PoCL) and on ONNX Runtime, one core: `python -m experiments.opencl_convolutions.run`."""

import argparse
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from experiments.opencl_networks.networks import NETWORKS, Runner, difference, note_on_fit, onnxruntime, save_network
from experiments.records import Value, write_record
from predictors.errors import StretchError
from scheduler.cores import available_cores, pinned
from scheduler.delegates.opencl.compiled import OpenCLCompiled
from scheduler.delegates.opencl.delegate import OpenCLDelegate
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.graph import NONE, KernelGraph, KernelNode, fuse, read_graph, simplify
from scheduler.delegates.opencl.schedule import Options, Schedules
from scheduler.delegates.opencl.templates import lower
from scheduler.delegates.opencl.tuner import alone

HERE = Path(__file__).parent

#: Activations as ONNX nodes after the convolution, so that ONNX Runtime can merge them as it does in a network.
ONNX_ACTIVATIONS = {"relu": ["Relu"], "clip": ["Clip"], "silu": ["Sigmoid", "Mul"], "sigmoid": ["Sigmoid"]}


def convolutions(model: Path) -> dict[str, tuple[KernelGraph, KernelNode, int]]:
    """The different convolutions of a network by what decides their time, each with how often it occurs; additions are left out."""
    graph = read_graph(model)
    simplify(graph)
    fuse(graph, residual=False)
    result: dict[str, tuple[KernelGraph, KernelNode, int]] = {}
    for node in graph.nodes:
        if node.op == "Conv":
            m, _, kh, kw = graph.shapes[node.inputs[1]]
            _, c, h, w = graph.shapes[node.inputs[0]]
            stride, groups = node.attrs.get("strides", (1, 1))[0], node.attrs.get("group", 1)
            words = f"{c}×{h}×{w} → {m}, {kh}×{kw}" + (f" / {stride}" if stride > 1 else "") + (f", {groups} groups" if groups > 1 else "")
            name = node.attrs.get("activation", NONE).name
            words += "" if name == "none" else f", {name}"
            count = result[words][2] if words in result else 0
            result[words] = (graph, node, count + 1)
    return result


def save_alone(graph: KernelGraph, node: KernelNode, path: Path) -> Path:
    """One convolution with its activation as an ONNX model."""
    x, y = node.inputs[0], node.output
    attrs = {key: value for key, value in node.attrs.items() if key not in ("activation", "residual", "residual_last")}
    nodes = [helper.make_node("Conv", [name for name in node.inputs[:3] if name], ["c"], **attrs)]
    weights = {name: graph.constants[name] for name in node.inputs[1:3] if name}
    activation = node.attrs.get("activation", NONE)
    last = "c"
    for i, op in enumerate(ONNX_ACTIVATIONS.get(activation.name, [])):
        more = ["low", "high"] if op == "Clip" else ["c"] if op == "Mul" else []
        nodes.append(helper.make_node(op, [last, *more], [f"a{i}"]))
        last = f"a{i}"
    if activation.name == "clip":
        weights |= {"low": np.array(activation.a, np.float32), "high": np.array(activation.b, np.float32)}
    nodes[-1].output[0] = "y"
    value = helper.make_tensor_value_info
    proto = helper.make_graph(
        nodes,
        "one",
        [value(x, TensorProto.FLOAT, graph.shapes[x])],
        [value("y", TensorProto.FLOAT, graph.shapes[y])],
        [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    return path


def compile_alone(graph: KernelGraph, node: KernelNode, core: int, winograd: str) -> OpenCLCompiled:
    """One convolution on our kernels, its input and output in our layout as inside a network."""
    device = open_device((core,))
    small = alone(graph, node)
    launches = lower(small, device.traits.blocking(False), device.traits, Options(winograd=winograd), Schedules(device.traits))
    return OpenCLCompiled(device, small, launches)


def kernel_ms(runner: Runner) -> float:
    """Time of the convolution itself in one run: layout conversions and the activation that closes the graph are left out."""
    runner.call.run()
    spans = zip(runner.compiled.launches, runner.call.spans(), strict=True)
    return sum(span.ms for launch, span in spans if launch.kernel not in ("move", "elementwise"))


def measure(core: int, rounds: int, networks: Sequence[str]) -> list[dict[str, Value]]:
    """A row a convolution."""
    rows: list[dict[str, Value]] = []
    with tempfile.TemporaryDirectory() as folder:
        for network in networks:
            model = save_network(network, Path(folder))
            for words, (graph, node, count) in convolutions(model).items():
                path = save_alone(graph, node, Path(folder) / "one.onnx")
                theirs = onnxruntime(path)
                whole = Runner(OpenCLDelegate((core,)).compile(path))
                ours = {use: Runner(compile_alone(graph, node, core, use)) for use in ("auto", "off")}
                error = difference(whole, theirs)
                if error > 1e-4:
                    raise StretchError(f"{words} differs from ONNX Runtime by {error:.1e}")
                times: dict[str, list[float]] = {"auto": [], "off": [], "theirs": []}
                for _ in range(rounds):
                    times["theirs"].append(theirs.ms())
                    for use, runner in ours.items():
                        times[use].append(kernel_ms(runner))
                auto, off, base = (statistics.median(times[key]) for key in ("auto", "off", "theirs"))
                oh, ow = graph.shapes[node.output][2:]
                macs = oh * ow * graph.constants[node.inputs[1]].size
                kernels = dict.fromkeys(
                    launch.kernel for launch in ours["auto"].compiled.launches if launch.kernel not in ("move", "elementwise")
                )
                rows.append(
                    {
                        "convolution": f"{network}: {words}",
                        "times": count,
                        "kernels": ", ".join(kernels),
                        "OpenCL_ms": round(auto, 4),
                        "direct_ms": round(off, 4),
                        "ONNX_Runtime_ms": round(base, 4),
                        "speed_over_ONNX_Runtime": round(base / auto, 3),
                        "GFLOP_per_s": round(2 * macs / auto / 1e6, 1),
                        "max_error": error,
                    }
                )
    return rows


def summary(rows: list[dict[str, Value]]) -> list[dict[str, Value]]:
    """A row a network, from the rows of its convolutions.

    The means over images of more than one pixel stand beside those over all: a
    convolution of one pixel takes less time than a call of ONNX Runtime, which its side counts.
    """
    result: list[dict[str, Value]] = []
    for network in dict.fromkeys(str(row["convolution"]).partition(":")[0] for row in rows):
        current = [row for row in rows if str(row["convolution"]).startswith(f"{network}: ")]
        larger = [row for row in current if not one_pixel(row)]
        speeds = [_number(row, "speed_over_ONNX_Runtime") for row in current]
        result.append(
            {
                "network": network,
                "convolutions": len(current),
                "of_one_pixel": len(current) - len(larger),
                "geometric_mean": _mean(speeds),
                "without_one_pixel": _mean([_number(row, "speed_over_ONNX_Runtime") for row in larger]),
                "least": min(speeds),
                "largest": max(speeds),
                "without_Winograd": _mean([_number(row, "ONNX_Runtime_ms") / _number(row, "direct_ms") for row in current]),
                "without_both": _mean([_number(row, "ONNX_Runtime_ms") / _number(row, "direct_ms") for row in larger]),
                "sum_ms": round(sum(_number(row, "times") * _number(row, "OpenCL_ms") for row in current), 2),
                "ONNX_Runtime_sum_ms": round(sum(_number(row, "times") * _number(row, "ONNX_Runtime_ms") for row in current), 2),
            }
        )
    return result


def one_pixel(row: dict[str, Value]) -> bool:
    """Whether a convolution reads an image of one pixel, as in squeeze and excitation."""
    return "×1×1 → " in str(row["convolution"])


def _number(row: dict[str, Value], column: str) -> float:
    return float(str(row[column]))


def _mean(ratios: list[float]) -> float | None:
    """Geometric mean; None of nothing."""
    return None if not ratios else round(math.exp(statistics.mean(map(math.log, ratios))), 3)


def main(words: list[str] | None = None) -> int:
    """Measure and write ``results/host.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.opencl_convolutions.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), help="names of `stretch list models`")
    parser.add_argument("--core", type=int, default=available_cores()[-1])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "host.json")
    options = parser.parse_args(words)
    load = os.getloadavg()[0]
    with pinned((options.core,)):
        rows = measure(options.core, options.rounds, options.networks)
    chosen = [] if tuple(options.networks) == NETWORKS else ["--networks", *options.networks]
    write_record(
        options.out,
        {"summary": summary(rows), "convolutions": rows},
        source="measured",
        command=" ".join(["python -m experiments.opencl_convolutions.run", *chosen]),
        runs=options.rounds,
        interleaved=True,
        load=load,
        notes=[
            "fp32, batch 1, one thread of each on the same core, medians, no schedule tuned. OpenCL: the convolution's kernels by the device's clock, "
            "in its own layout as inside a network. ONNX Runtime: a session of that one convolution and activation, its layout conversions and call included: the call is most of the time where the image has one pixel. "
            + note_on_fit(options.networks)
        ],
    )
    sys.stderr.write(f"{options.out} written; fill the pages with python -m experiments.render\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
