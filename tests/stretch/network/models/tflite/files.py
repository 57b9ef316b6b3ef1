"""TFLite files of a few operators, LiteRT's results for them, and whether the module that is read from them agrees."""

import numpy as np
import torch

from scheduler.formats.tflite import ANY_TFLITE, ANY_TYPES, NAMES, OPERATORS
from stretch.network.models.tflite import read_module
from tests.stretch.network.models.onnx.oracle import random

#: Largest difference from the runtime, as a part of its largest output.
CLOSE = 1e-4

NUMBERS = {name: number for number, name in NAMES.items()}
TABLES = {table: number for number, table in ANY_TFLITE.unions["BuiltinOptions"].items()}
#: Versions of operators that the runtime has no first one of.
VERSIONS = {"BROADCAST_TO": 2}
KINDS = {kind: number for number, kind in ANY_TYPES.items()}


#: Tables of settings whose names are not those of their operators.
NAMED = {**dict.fromkeys(("SUM", "REDUCE_MIN", "REDUCE_PROD"), "Reducer"), "L2_NORMALIZATION": "L2Norm"}


def op(code, inputs, outputs=("y",), **settings):
    """One operator; its inputs and outputs by name, None for one that is left out."""
    return code, list(inputs), list(outputs), settings


def table_of(code):
    """The number of an operator's table of settings; None if it has none."""
    name = OPERATORS[code].options if code in OPERATORS else f"{NAMED.get(code, code.replace('_', ''))}Options"
    return {table.lower(): number for table, number in TABLES.items()}.get(str(name).lower())


def model(*operators, stored=None, shape=(1, 6, 5, 4), outputs=("y",), kinds=None, scales=None):
    """The tables of a file that reads `x`, or several by name; `stored` are arrays, `kinds` and `scales` those of other tensors, by name."""
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


def write(path, *operators, **more):
    """A file of some operators; gives the path."""
    path.write_bytes(bytes(ANY_TFLITE.encode(model(*operators, **more))))
    return path


def ran(path, *inputs):
    """The first result of LiteRT's own kernels for a file; `inputs` in order, as the file has them."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    runtime = Interpreter(str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
    runtime.allocate_tensors()
    for detail, x in zip(runtime.get_input_details(), inputs, strict=True):
        runtime.set_tensor(detail["index"], x)
    runtime.invoke()
    return runtime.get_tensor(runtime.get_output_details()[0]["index"])


def to_first(x):
    """An image as torch has it."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if x.ndim == 4 else x


def computed(path, x):
    """Output of the module of a file; `x` as the file has it."""
    module = read_module(path)
    with torch.no_grad():
        return module(torch.from_numpy(x if module.input_shape == x.shape else to_first(x))).numpy()


def agrees(path, x=None, close=CLOSE):
    """Assert that the module of a file computes what LiteRT does; gives the module."""
    x = random((1, 6, 5, 4)) if x is None else x
    want, got = ran(path, x), computed(path, x)
    # Images come as torch has them, all else as the file does.
    result = [value for value in (want, to_first(want)) if value.shape == got.shape]
    assert result, f"{got.shape} is not {want.shape}"
    slack = close * max(1.0, float(np.abs(want).max()))
    assert min(np.abs(item.astype(np.float64) - got).max() for item in result) <= slack
    return read_module(path)
