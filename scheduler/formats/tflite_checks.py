"""Whether every number in a TFLite file is one that a runtime can follow: runtimes do not look twice."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from predictors.errors import need
from scheduler.formats.tflite_schema import OPERATORS, OPTIONS, TYPES, VERSION

#: Largest tensor of a subgraph: a gigabyte of reals.
MAX_ELEMENTS = 1 << 28

#: Scales of int8 tensors: beyond them LiteRT's fixed-point factors leave their range, and it stops the process.
LEAST_SCALE, MAX_SCALE = 2.0**-24, 2.0**24

#: Largest factor between the integers of an operator's inputs and those of its result: LiteRT stops the process
#: at twice that for products with weights, and for additions.
MAX_FACTORS = {"weights": 2.0**7, "others": 2.0**18}

#: Operators whose int8 result has the same scale whatever they read.
_BOUNDED = ("LOGISTIC", "TANH", "SOFTMAX")

_KINDS = {kind.number: (name, kind) for name, kind in OPERATORS.items()}
_NAMES = {number: name for name, number in TYPES.items()}

#: Settings that a runtime divides by or sizes memory with.
_POSITIVE = ("stride_w", "stride_h", "dilation_w_factor", "dilation_h_factor", "depth_multiplier", "filter_width", "filter_height")
#: Settings that are numbers of a short list, and its length.
_CHOICES = {"padding": 2, "fused_activation_function": 4}


def check_model(model: Mapping[str, Any]) -> None:
    """Check every index and size that a runtime follows, and put defaults where a field is left out.

    Args:
        model: The tables of a file, as `scheduler.formats.tflite_schema.TFLITE` reads them.
    """
    need(model.get("version") == VERSION, f"its version is {model.get('version')}, not {VERSION}")
    for key in ("operator_codes", "subgraphs", "buffers", "signature_defs"):
        need(bool(model.get(key)), f"it has no {key.replace('_', ' ')}")
    for code in model["operator_codes"]:
        number = code.get("builtin_code", 0)
        need(number in _KINDS, f"it has operator number {number}, which nn-stretch does not write")
        need(1 <= code.get("version", 1) <= 16, f"its operator {_KINDS[number][0]} has version {code.get('version')}")
        code["builtin_code"] = number
    need(not model["buffers"][0], "its first buffer is not empty")
    for entry in model.get("metadata", []):
        need(entry.get("buffer", 0) < len(model["buffers"]), "its metadata lie in a buffer that is not there")
    for graph in model["subgraphs"]:
        _check_graph(graph, model)
    taken = Counter(definition.setdefault("subgraph_index", 0) for definition in model["signature_defs"])
    need(set(taken) == set(range(len(model["subgraphs"]))) and max(taken.values()) == 1, "its signatures are not one for each subgraph")
    keys = [definition.get("signature_key", "") for definition in model["signature_defs"]]
    need(all(keys) and len(set(keys)) == len(keys), "two of its signatures have one name")
    for definition in model["signature_defs"]:
        graph = model["subgraphs"][definition["subgraph_index"]]
        for key in ("inputs", "outputs"):
            ends = definition.get(key, [])
            indices = [end.setdefault("tensor_index", 0) for end in ends]
            names = [end.get("name", "") for end in ends]
            proper = indices == graph[key].tolist() and all(names) and len(set(names)) == len(names)
            need(proper, f"signature `{definition['signature_key']}` does not name the {key} of its subgraph")


def _check_graph(graph: dict[str, Any], model: Mapping[str, Any]) -> None:
    name = graph.get("name", "")
    tensors = graph.get("tensors", [])
    constant = [_check_tensor(tensor, model["buffers"]) for tensor in tensors]
    for key in ("inputs", "outputs"):
        need(len(graph.get(key, ())) > 0, f"subgraph `{name}` has no {key}")
        need(all(0 <= i < len(tensors) and not constant[i] for i in graph[key]), f"subgraph `{name}` has {key} that are no tensors")
    there = set(graph["inputs"].tolist())
    there |= {i for i, is_constant in enumerate(constant) if is_constant}
    need(bool(graph.get("operators")), f"subgraph `{name}` has no operators")
    for operator in graph["operators"]:
        index = operator.setdefault("opcode_index", 0)
        need(index < len(model["operator_codes"]), f"subgraph `{name}` has an operator without a code")
        code, kind = _KINDS[model["operator_codes"][index]["builtin_code"]]
        reads, writes = operator.get("inputs", np.empty(0)).tolist(), operator.get("outputs", np.empty(0)).tolist()
        fits = len(reads) > 0 if kind.reads.endswith("*") else len(reads) == len(kind.reads)
        need(fits, f"{code} of subgraph `{name}` has {len(reads)} inputs")
        need(all(i in there for i in reads), f"{code} of subgraph `{name}` reads what nothing writes before it")
        need(
            len(writes) == 1 and 0 <= writes[0] < len(tensors) and writes[0] not in there,
            f"{code} of subgraph `{name}` writes no tensor of its own",
        )
        there.add(writes[0])
        expected = OPTIONS[kind.options] if kind.options else 0
        need(operator.get("builtin_options_type", 0) == expected, f"{code} of subgraph `{name}` has the settings of another operator")
        _check_settings(code, name, operator.setdefault("builtin_options", {}) if kind.options else {})
        _check_types(code, name, kind.reads, [(tensors[i], constant[i]) for i in reads], tensors[writes[0]])
        _check_factor(code, name, kind.reads, [tensors[i] for i in reads], tensors[writes[0]])
        _check_growth(code, name, [tensors[i] for i in reads], tensors[writes[0]], model["buffers"])
    need(all(i in there for i in graph["outputs"]), f"subgraph `{name}` has outputs that nothing writes")


def _check_tensor(tensor: dict[str, Any], buffers: list[Mapping[str, Any]]) -> bool:
    """Check one tensor; gives whether it is a constant."""
    name = tensor.setdefault("name", "")
    shape = tensor.setdefault("shape", np.empty(0, np.int32))
    kind = _NAMES.get(tensor.setdefault("type", 0))
    need(kind is not None, f"tensor `{name}` has a type that nn-stretch does not write")
    elements = math.prod(int(n) for n in shape)
    need(all(n > 0 for n in shape) and elements <= MAX_ELEMENTS, f"tensor `{name}` has the shape {list(map(int, shape))}")
    need(tensor.setdefault("buffer", 0) < len(buffers), f"the buffer of tensor `{name}` is not there")
    content = buffers[tensor["buffer"]].get("data")
    if content is not None:
        wanted = elements * np.dtype(kind).itemsize
        need(len(content) == wanted, f"tensor `{name}` has {len(content)} bytes, its shape needs {wanted}")
    quant = tensor.get("quantization")
    if quant is not None:
        scale, zero = quant.get("scale", np.empty(0)), quant.get("zero_point", np.empty(0))
        axis = quant.get("quantized_dimension", 0)
        channels = int(shape[axis]) if 0 <= axis < len(shape) else 1
        fits = len(scale) == len(zero) and len(scale) in (1, channels) and (len(scale) == 1 or 0 <= axis < len(shape))
        need(fits, f"tensor `{name}` has {len(scale)} scales and {len(zero)} zero points")
        need(
            bool(np.isfinite(scale).all() and (scale > 0).all() and (np.abs(zero) <= 128).all()),
            f"tensor `{name}` has a scale that is none",
        )
        need(kind in ("int8", "int32"), f"tensor `{name}` is {kind} and has a scale")
        need(len(scale) == 1 or content is not None, f"tensor `{name}` has a scale for each channel and is no weight")
        fits = content is not None or LEAST_SCALE <= scale[0] <= MAX_SCALE
        need(bool(fits), f"tensor `{name}` has the scale {scale[:1]}, which is out of range")
    need(quant is not None or kind != "int8", f"tensor `{name}` is int8 without a scale")
    return content is not None


def _check_settings(code: str, name: str, settings: Mapping[str, Any]) -> None:
    for key in settings.keys() & _POSITIVE:
        need(1 <= settings[key] <= 1 << 16, f"{code} of subgraph `{name}` has {key} {settings[key]}")
    for key in settings.keys() & _CHOICES.keys():
        need(0 <= settings[key] < _CHOICES[key], f"{code} of subgraph `{name}` has {key} {settings[key]}")
    if code in ("CONV_2D", "DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D"):
        need({"stride_w", "stride_h"} <= settings.keys(), f"{code} of subgraph `{name}` has no stride")
    if code in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        need({"filter_width", "filter_height"} <= settings.keys(), f"{code} of subgraph `{name}` has no window")


def _check_types(code: str, name: str, letters: str, reads: list[tuple[dict[str, Any], bool]], writes: dict[str, Any]) -> None:
    """Runtimes stop the process where an operator mixes types that it has no kernel for."""
    element_type = _NAMES[writes["type"]]
    allowed = {
        "x": (element_type,),
        "w": (element_type,),
        "b": ("int32" if element_type == "int8" else "float32",),
        "i": ("int32",),
        "q": ("float32", "int8") if code == "QUANTIZE" else ("int8", "float16"),
    }
    results = {"QUANTIZE": ("int8",), "DEQUANTIZE": ("float32",)}.get(code, ("float32", "int8"))
    need(element_type in results, f"{code} of subgraph `{name}` gives {element_type}")
    for letter, (tensor, constant) in zip(letters[0] * len(reads) if letters.endswith("*") else letters, reads, strict=True):
        kind = _NAMES[tensor["type"]]
        need(kind in allowed[letter], f"{code} of subgraph `{name}` reads {kind} as `{tensor['name']}` and gives {element_type}")
        need(constant or letter != "i", f"{code} of subgraph `{name}` reads no constant as `{tensor['name']}`")


def _check_factor(code: str, name: str, letters: str, reads: list[dict[str, Any]], writes: dict[str, Any]) -> None:
    """Integers of the inputs must not have to grow too much to become those of the result."""
    if _NAMES[writes["type"]] != "int8" or code in _BOUNDED or "quantization" not in reads[0]:
        return
    scales = [float(tensor["quantization"]["scale"].max()) for tensor in reads if "quantization" in tensor]
    if "w" in letters:
        weight, bias = reads[1].get("quantization"), reads[2].get("quantization")
        need(weight is not None and bias is not None, f"{code} of subgraph `{name}` has a weight without a scale")
        factor = scales[0] * scales[1]
    else:
        factor = math.prod(scales) if code == "MUL" else max(scales)
    factor /= float(writes["quantization"]["scale"][0])
    need(
        factor <= MAX_FACTORS["weights" if "w" in letters else "others"],
        f"{code} of subgraph `{name}` makes its integers {factor:.1g} times as large",
    )


def _check_growth(code: str, name: str, reads: list[dict[str, Any]], writes: dict[str, Any], buffers: list[Mapping[str, Any]]) -> None:
    """Operators whose result is as large as a constant says must say what the file says: a runtime would make it that large."""
    shape = list(reads[0]["shape"])
    if code in ("PAD", "PADV2"):
        widths = _numbers(code, name, reads[1], buffers)
        need(len(widths) == 2 * len(shape) and min(widths) >= 0, f"{code} of subgraph `{name}` has the widths {widths}")
        expected = [size + before + after for size, before, after in zip(shape, widths[::2], widths[1::2], strict=True)]
    elif code == "RESIZE_NEAREST_NEIGHBOR":
        sizes = _numbers(code, name, reads[1], buffers)
        need(len(shape) == 4 and len(sizes) == 2, f"{code} of subgraph `{name}` has the size {sizes}")
        expected = [shape[0], *sizes, shape[3]]
    elif code == "RESHAPE":
        expected = _numbers(code, name, reads[1], buffers)
        need(math.prod(expected) == math.prod(map(int, shape)), f"{code} of subgraph `{name}` has the shape {expected}")
    else:
        return
    need(expected == writes["shape"].tolist(), f"{code} of subgraph `{name}` gives {expected}, the file says {writes['shape'].tolist()}")


def _numbers(code: str, name: str, tensor: dict[str, Any], buffers: list[Mapping[str, Any]]) -> list[int]:
    content = buffers[tensor["buffer"]].get("data")
    need(content is not None and tensor["type"] == TYPES["int32"], f"{code} of subgraph `{name}` has no constant shape")
    return [int(n) for n in np.frombuffer(bytes(content if content is not None else b""), "<i4")]
