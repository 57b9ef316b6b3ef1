"""TFLite files of a few operators, and checks of the module that is read from them against LiteRT."""

import numpy as np
import torch

from scheduler.formats.tflite import ANY_TFLITE, ANY_TYPES, NAMES, OPERATORS
from stretch.network.models.tflite import read_module
from tests.stretch.network.models.onnx.oracle import random

#: Largest difference from the runtime, as a part of its largest output.
CLOSE = 1e-4

NUMBERS = {name: number for number, name in NAMES.items()}
TABLES = {table: number for number, table in ANY_TFLITE.unions["BuiltinOptions"].items()}
#: Versions of operators whose first version the runtime lacks.
VERSIONS = {"BROADCAST_TO": 2}
KINDS = {kind: number for number, kind in ANY_TYPES.items()}


#: Names of option tables that differ from the names of their operators.
NAMED = {**dict.fromkeys(("SUM", "REDUCE_MIN", "REDUCE_PROD"), "Reducer"), "L2_NORMALIZATION": "L2Norm"}


def op(code, inputs, outputs=("y",), **settings):
    """Return an operator with its inputs and outputs by name; None is an omitted input."""
    return code, list(inputs), list(outputs), settings


def table_of(code):
    """Return the number of an operator's option table; None without one."""
    name = OPERATORS[code].options if code in OPERATORS else f"{NAMED.get(code, code.replace('_', ''))}Options"
    return {table.lower(): number for table, number in TABLES.items()}.get(str(name).lower())


def model(*operators, stored=None, shape=(1, 6, 5, 4), outputs=("y",), kinds=None, scales=None):
    """Return the tables of a file that reads `x`, or inputs by name; arrays, types and scales are given by name, too."""
    stored, kinds, scales = stored or {}, kinds or {}, scales or {}
    entries = shape if isinstance(shape, dict) else {"x": shape}
    names = [*entries, *stored, *(name for operator in operators for name in operator[2])]
    tensors, buffers = [], [{}]
    for name in names:
        array = None if name not in stored else np.ascontiguousarray(stored[name])
        kind = kinds.get(name, "float32" if array is None else array.dtype.name)
        tensor = {"name": name, "shape": list(entries.get(name, ()) if array is None else array.shape), "type": KINDS[kind]}
        if array is not None:
            tensor["buffer"] = len(buffers)
            buffers.append({"data": array.reshape(-1).view(np.uint8)})
        if name in scales:
            scale, zero, axis = scales[name]
            tensor["quantization"] = {"scale": np.atleast_1d(scale), "zero_point": np.atleast_1d(zero), "quantized_dimension": axis}
        tensors.append(tensor)
    codes = list(dict.fromkeys(code for code, *_ in operators))
    written = []
    for code, inputs, built, settings in operators:
        table = table_of(code)
        options = {} if table is None else {"builtin_options_type": table, "builtin_options": settings}
        reads = [-1 if name is None else names.index(name) for name in inputs]
        written.append({"opcode_index": codes.index(code), "inputs": reads, "outputs": [names.index(name) for name in built], **options})
    graph = {
        "tensors": tensors,
        "inputs": list(range(len(entries))),
        "outputs": [names.index(name) for name in outputs],
        "operators": written,
    }
    numbers = [
        {"deprecated_builtin_code": min(NUMBERS[code], 127), "version": VERSIONS.get(code, 1), "builtin_code": NUMBERS[code]}
        for code in codes
    ]
    return {"version": 3, "operator_codes": numbers, "subgraphs": [graph], "buffers": buffers}


def write(path, *operators, **options):
    """Write a file of some operators; return the path."""
    path.write_bytes(bytes(ANY_TFLITE.encode(model(*operators, **options))))
    return path


def ran(path, *inputs):
    """Return the first result of LiteRT's built-in kernels; `inputs` have the order and layout of the file."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    runtime = Interpreter(str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
    runtime.allocate_tensors()
    for detail, x in zip(runtime.get_input_details(), inputs, strict=True):
        runtime.set_tensor(detail["index"], x)
    runtime.invoke()
    return runtime.get_tensor(runtime.get_output_details()[0]["index"])


def to_first(x):
    """Convert an image from NHWC to NCHW; return other arrays unchanged."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if x.ndim == 4 else x


def computed(path, x):
    """Return the output of the module of a file; `x` has the layout of the file."""
    module = read_module(path)
    with torch.no_grad():
        return module(torch.from_numpy(x if module.input_shape == x.shape else to_first(x))).numpy()


def agrees(path, x=None, close=CLOSE):
    """Assert that the module of a file computes what LiteRT does; return the module."""
    x = random((1, 6, 5, 4)) if x is None else x
    want, got = ran(path, x), computed(path, x)
    # Images have the layout of torch, other results that of the file.
    result = [value for value in (want, to_first(want)) if value.shape == got.shape]
    assert result, f"{got.shape} is not {want.shape}"
    slack = close * max(1.0, float(np.abs(want).max()))
    assert min(np.abs(item.astype(np.float64) - got).max() for item in result) <= slack
    return read_module(path)
