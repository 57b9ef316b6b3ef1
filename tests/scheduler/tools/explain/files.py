"""Small files as other people's exporters write them, each with what stops it somewhere."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from scheduler.formats.tflite import ANY_TFLITE, NAMES

NUMBERS = {name: number for number, name in NAMES.items()}


def weights(name, *shape, kind=np.float32):
    return numpy_helper.from_array((np.random.default_rng(0).standard_normal(shape) / 4).astype(kind), name)


def model(nodes, stored=(), shape=(1, 3, 8, 8), out=None, kind=TensorProto.FLOAT, out_kind=None, opset=18, domains=()):
    """A file of one input `x` and one output `y`."""
    ends = [helper.make_tensor_value_info("x", kind, shape), helper.make_tensor_value_info("y", out_kind or kind, out)]
    graph = helper.make_graph(nodes, "foreign", ends[:1], ends[1:], list(stored))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def conv(reads="x", writes="c", name="conv", weight="w", **settings):
    return helper.make_node("Conv", [reads, weight], [writes], name, **{"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], **settings})


def node(op, reads, writes, name, **settings):
    return helper.make_node(op, reads, writes, name, **settings)


def plain():
    """A convolution with its activation, and a pool."""
    nodes = [conv(), node("Relu", ["c"], ["r"], "relu"), node("GlobalAveragePool", ["r"], ["y"], "pool")]
    return model(nodes, [weights("w", 4, 3, 3, 3)], out=(1, 4, 1, 1))


def own_domain():
    """An operator of somebody's own library in the middle."""
    nodes = [conv(), node("Swirl", ["c"], ["s"], "swirl", domain="com.example"), node("Relu", ["s"], ["y"], "relu")]
    return model(nodes, [weights("w", 4, 3, 3, 3)], out=(1, 4, 8, 8), domains=("com.example",))


def doubles():
    """A convolution of doubles, which ONNX Runtime has no kernel for."""
    nodes = [conv(), node("Relu", ["c"], ["y"], "relu")]
    return model(nodes, [weights("w", 4, 3, 3, 3, kind=np.float64)], out=(1, 4, 8, 8), kind=TensorProto.DOUBLE)


def open_batch():
    """As exporters write a batch of any size."""
    nodes = [conv(), node("Relu", ["c"], ["y"], "relu")]
    return model(nodes, [weights("w", 4, 3, 3, 3)], shape=("batch", 3, 8, 8), out=("batch", 4, 8, 8))


def upsample():
    """Opset 9, with an operator that later ones lack."""
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    nodes = [conv(), node("Upsample", ["c", "scales"], ["y"], "up", mode="nearest")]
    return model(nodes, [weights("w", 4, 3, 3, 3), scales], out=(1, 4, 16, 16), opset=9)


def best_places():
    """The best channel of each place."""
    nodes = [conv(), node("ArgMax", ["c"], ["y"], "best", axis=1, keepdims=1)]
    return model(nodes, [weights("w", 4, 3, 3, 3)], out=(1, 1, 8, 8), out_kind=TensorProto.INT64)


def determinant():
    """An operator that few runtimes have."""
    nodes = [conv(), node("Det", ["c"], ["y"], "det")]
    return model(nodes, [weights("w", 4, 3, 3, 3)], out=(1, 4))


def two_results():
    """The largest two of each row, and where they are."""
    k = numpy_helper.from_array(np.array([2], np.int64), "k")
    nodes = [conv(), node("TopK", ["c", "k"], ["t", "where"], "top"), node("Relu", ["t"], ["y"], "relu")]
    return model(nodes, [weights("w", 4, 3, 3, 3), k], out=(1, 4, 8, 2))


def volumes():
    """A convolution of volumes."""
    settings = {"kernel_shape": [3, 3, 3], "pads": [1] * 6}
    return model([conv(writes="y", **settings)], [weights("w", 4, 3, 3, 3, 3)], shape=(1, 3, 4, 8, 8), out=(1, 4, 4, 8, 8))


def foldable():
    """Shapes that are computed where they are known, as torch's exporter once wrote them."""
    zero = numpy_helper.from_array(np.array(0, np.int64), "zero")
    rest = numpy_helper.from_array(np.array([-1], np.int64), "rest")
    axes = numpy_helper.from_array(np.array([0], np.int64), "axes")
    nodes = [
        conv(),
        node("Shape", ["c"], ["s"], "shape"),
        node("Gather", ["s", "zero"], ["n"], "gather", axis=0),
        node("Unsqueeze", ["n", "axes"], ["u"], "unsqueeze"),
        node("Concat", ["u", "rest"], ["to"], "concat", axis=0),
        node("Reshape", ["c", "to"], ["y"], "reshape"),
    ]
    return model(nodes, [weights("w", 4, 3, 3, 3), zero, rest, axes], out=(1, 256))


FOREIGN = {
    "plain": plain,
    "own_domain": own_domain,
    "doubles": doubles,
    "open_batch": open_batch,
    "upsample": upsample,
    "best_places": best_places,
    "determinant": determinant,
    "two_results": two_results,
    "volumes": volumes,
    "foldable": foldable,
}


def write_onnx(folder, name):
    """One of `FOREIGN` as a file."""
    path = folder / f"{name}.onnx"
    onnx.save(FOREIGN[name](), str(path))
    return path


#: Chains of TFLite: codes of one input or, with a stored second one, two; `kind` is of all tensors, by its number.
CHAINS = {
    "add": {"codes": ["ADD"]},
    "add_mul": {"codes": ["ADD", "MUL"]},
    "whole_numbers": {"codes": ["ADD"], "kind": 4},
    "divided": {"codes": ["ADD", "FLOOR_DIV", "MUL"]},
    "power": {"codes": ["POW", "MUL"]},
    "own": {"codes": ["ADD", "CUSTOM"]},
    "reversed": {"codes": ["ABS", "CEIL", "SIGN"]},
    "rounded": {"codes": ["ROUND", "ABS", "NEG"]},
    "two_parts": {"codes": ["ABS", "ADD", "SIGN", "ADD", "ABS"]},
    "floors": {"codes": ["FLOOR_DIV", "FLOOR_DIV"]},
}
#: Numbers of the tables of settings that converters write even where they are empty.
OPTIONS = {"ADD": 11, "MUL": 21}
_TWO = ("ADD", "MUL", "FLOOR_DIV", "POW", "SUB")


def write_tflite(folder, name):
    """One of `CHAINS` as a file."""
    return write_chain(folder, name, **CHAINS[name])


def write_chain(folder, name, codes, kind=0):
    """Operators one behind the other as a file."""
    stored = np.arange(1, 5).astype(np.int64 if kind == 4 else np.float32)
    tensors = [{"name": "t0", "shape": [1, 4], "type": kind}, {"name": "stored", "shape": [4], "type": kind, "buffer": 1}]
    operators, last = [], 0
    for i, code in enumerate(codes):
        tensors.append({"name": f"t{i + 1}", "shape": [1, 4], "type": kind})
        count = len(tensors) - 1
        operators.append({"opcode_index": i, "inputs": [last, 1] if code in _TWO else [last], "outputs": [count]})
        if code in OPTIONS:
            operators[-1] |= {"builtin_options_type": OPTIONS[code], "builtin_options": {}}
        last = count
    known = [{"deprecated_builtin_code": min(NUMBERS[c], 127), "builtin_code": NUMBERS[c], "version": 1} for c in codes]
    for code, entry in zip(codes, known, strict=True):
        if code == "CUSTOM":
            entry["custom_code"] = "Swirl"
        if code == "ADD" and kind == 4:
            entry["version"] = 4
    graph = {"tensors": tensors, "inputs": [0], "outputs": [last], "operators": operators}
    buffers = [{}, {"data": stored.view(np.uint8)}]
    path = folder / f"{name}.tflite"
    path.write_bytes(bytes(ANY_TFLITE.encode({"version": 3, "operator_codes": known, "subgraphs": [graph], "buffers": buffers})))
    return path
