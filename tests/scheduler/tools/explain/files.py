"""Small files like those of other exporters, most with an operator or type that some runtime refuses."""

from functools import partial

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from scheduler.formats.tflite import ANY_TFLITE, NAMES

NUMBERS = {name: number for number, name in NAMES.items()}


def model(*nodes, shape=(1, 3, 8, 8), out=None, kind=TensorProto.FLOAT, out_kind=None, opset=18, domains=(), weight=(4, 3, 3, 3), **stored):
    """A model with input `x`, output `y`, convolution weights `w`, and constants by name."""
    ends = [helper.make_tensor_value_info("x", kind, shape), helper.make_tensor_value_info("y", out_kind or kind, out)]
    stored = {"w": np.random.default_rng(0).standard_normal(weight).astype(helper.tensor_dtype_to_np_dtype(kind)) / 4} | stored
    weights = [numpy_helper.from_array(np.array(array), name) for name, array in stored.items()]
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(helper.make_graph(nodes, "foreign", ends[:1], ends[1:], weights), opset_imports=imports, ir_version=8)


def conv(writes="c", **settings):
    return node("Conv", "x w", writes, "conv", **{"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], **settings})


def node(op, reads, writes, name, **settings):
    return helper.make_node(op, reads.split(), writes.split(), name, **settings)


FOREIGN = {
    # a convolution with its activation, and a pool
    "plain": partial(model, conv(), node("Relu", "c", "r", "relu"), node("GlobalAveragePool", "r", "y", "pool"), out=(1, 4, 1, 1)),
    # an operator of another library in the middle
    "own_domain": partial(
        model,
        *(conv(), node("Swirl", "c", "s", "swirl", domain="com.example"), node("Relu", "s", "y", "relu")),
        **{"out": (1, 4, 8, 8), "domains": ("com.example",)},
    ),
    # a convolution in float64, for which ONNX Runtime has no kernel
    "doubles": partial(model, conv(), node("Relu", "c", "y", "relu"), out=(1, 4, 8, 8), kind=TensorProto.DOUBLE),
    # an open batch size, as exporters write it
    "open_batch": partial(model, conv(), node("Relu", "c", "y", "relu"), shape=("batch", 3, 8, 8), out=("batch", 4, 8, 8)),
    # opset 9, with an operator that later opsets lack
    "upsample": partial(
        model,
        *(conv(), node("Upsample", "c scales", "y", "up", mode="nearest")),
        **{"out": (1, 4, 16, 16), "opset": 9, "scales": np.array([1, 1, 2, 2], np.float32)},
    ),
    # the channel with the maximum at each position
    "best_places": partial(
        model, conv(), node("ArgMax", "c", "y", "best", axis=1, keepdims=1), out=(1, 1, 8, 8), out_kind=TensorProto.INT64
    ),
    # an operator that few runtimes support
    "determinant": partial(model, conv(), node("Det", "c", "y", "det"), out=(1, 4)),
    # the two largest values of each row, and their positions
    "two_results": partial(
        model, conv(), node("TopK", "c k", "t where", "top"), node("Relu", "t", "y", "relu"), out=(1, 4, 8, 2), k=np.array([2])
    ),
    # a 3D convolution
    "volumes": partial(
        model, conv("y", kernel_shape=[3] * 3, pads=[1] * 6), shape=(1, 3, 4, 8, 8), out=(1, 4, 4, 8, 8), weight=(4, 3, 3, 3, 3)
    ),
    # a computed but constant shape, as older torch exporters wrote it
    "foldable": partial(
        model,
        *(conv(), node("Shape", "c", "s", "shape"), node("Gather", "s zero", "n", "gather", axis=0)),
        *(node("Unsqueeze", "n axes", "u", "unsqueeze"), node("Concat", "u rest", "to", "concat", axis=0)),
        node("Reshape", "c to", "y", "reshape"),
        **{"out": (1, 256), "zero": np.array(0), "rest": np.array([-1]), "axes": np.array([0])},
    ),
}


#: TFLite chains of unary operators and binary operators with a constant; `kind` is the type number of all tensors.
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
#: Numbers of the option tables that converters write even if they are empty.
OPTIONS = {"ADD": 11, "MUL": 21}
_TWO = ("ADD", "MUL", "FLOOR_DIV", "POW", "SUB")


def write_chain(folder, name, codes, kind=0):
    stored = np.arange(1, 5).astype(np.int64 if kind == 4 else np.float32)
    tensors = [{"name": "t0", "shape": [1, 4], "type": kind}, {"name": "stored", "shape": [4], "type": kind, "buffer": 1}]
    operators, last = [], 0
    for i, code in enumerate(codes):
        tensors.append({"name": f"t{i + 1}", "shape": [1, 4], "type": kind})
        operators.append({"opcode_index": i, "inputs": [last, 1] if code in _TWO else [last], "outputs": [last := len(tensors) - 1]})
        if code in OPTIONS:
            operators[-1] |= {"builtin_options_type": OPTIONS[code], "builtin_options": {}}
    codes_written = [{"deprecated_builtin_code": min(NUMBERS[c], 127), "builtin_code": NUMBERS[c], "version": 1} for c in codes]
    for code, entry in zip(codes, codes_written, strict=True):
        if code == "CUSTOM":
            entry["custom_code"] = "Swirl"
        if code == "ADD" and kind == 4:
            entry["version"] = 4
    graph = {"tensors": tensors, "inputs": [0], "outputs": [last], "operators": operators}
    buffers = [{}, {"data": stored.view(np.uint8)}]
    path = folder / f"{name}.tflite"
    path.write_bytes(bytes(ANY_TFLITE.encode({"version": 3, "operator_codes": codes_written, "subgraphs": [graph], "buffers": buffers})))
    return path
