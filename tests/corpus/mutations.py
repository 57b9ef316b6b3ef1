"""Files made wrong on purpose: bytes, values of JSON and TOML, parts of ONNX models, each decided by a seed."""

import copy
import hashlib
import json
import math
import random
import tomllib

import onnx
import tomli_w
from onnx import TensorProto, helper

#: Values that nobody writes where a number, a word or a table is expected.
VALUES = [
    *(None, True, False, 0, -1, 1, 2, 3, 7, 10**6, 10**9, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, -1.5, 1e-300, 1e300, 1e15, 1e-15, 3.4e38),
    *("", "x", "cpu", "gpu", "..", "/", "a" * 5000, "\x00", "\x1b[31m", "bundle.json", "/dev/zero", "{}", "1" * 400),
    *([], {}, [[]], [0], [-1, 10**9], {"": ""}, {"x": {"x": {"x": []}}}),
]

#: The same, as far as TOML can say it, and what JSON cannot.
NUMBERS = [math.inf, -math.inf, math.nan]


def places(value, path=()):
    """Paths of everything inside of nested lists and dictionaries."""
    result = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        result += places(item, (*path, key))
    return result


def swapped(rng, data, values):
    """A copy of nested data with one thing in it replaced, removed, doubled or traded for another of the same data."""
    data = copy.deepcopy(data)
    *parents, last = rng.choice(places(data))
    at = data
    for key in parents:
        at = at[key]
    what = rng.randrange(16)
    alike = [value for value in values if type(value) is type(at[last])]
    if what >= 8 and alike:
        # of the same type, so that more than the schema is tested
        at[last] = copy.deepcopy(rng.choice(alike))
    elif what == 0:
        del at[last]
    elif what == 1 and isinstance(at, list):
        at.append(copy.deepcopy(at[last]))
    elif what == 2 and isinstance(at, dict):
        at[f"{last}x"] = at.pop(last)
    elif what == 3 and isinstance(at[last], int | float) and not isinstance(at[last], bool):
        at[last] = rng.choice([-1, 2, 10, 1000, 10**6]) * at[last]
    elif what == 4:
        *others, end = rng.choice(places(data))
        source = data
        for key in others:
            source = source[key]
        at[last] = copy.deepcopy(source[end])
    else:
        at[last] = copy.deepcopy(rng.choice(values))
    return data


def bytes_of(rng, content):
    """A copy of a file with bytes flipped, cut off, doubled or put in."""
    content = bytearray(content)
    what = rng.randrange(5)
    start = rng.randrange(max(1, len(content)))
    if what == 0:
        del content[start:]
    elif what == 1:
        content[start:start] = rng.randbytes(rng.choice([1, 8, 300]))
    elif what == 2:
        del content[start : start + rng.choice([1, 4, 64])]
    else:
        for _ in range(rng.choice([1, 1, 3, 20])):
            if content:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def json_text(rng, content):
    """A JSON file with one value that nobody writes, or nested without end."""
    if rng.random() < 0.03:
        return b'{"schema": 1, "design": ' + rng.choice([b"[", b'{"a":']) * 50_000
    return json.dumps(swapped(rng, json.loads(content), [*VALUES, *NUMBERS])).encode()


def toml_text(rng, content):
    """A TOML file with one value that nobody writes, one key too long or too deep, or bytes that are none."""
    what = rng.random()
    if what < 0.03:
        return content + b"\nx = " + b"[" * 5000
    if what < 0.06:
        return content + b"\n[" + b".".join([b"a"] * 3000) + b"]\n"
    if what < 0.2:
        return bytes_of(rng, content)
    data = swapped(rng, tomllib.loads(content.decode()), [*(v for v in VALUES if v is not None), *NUMBERS])
    return tomli_w.dumps(data).encode()


OPERATORS = ["Loop", "If", "Scan", "RandomNormal", "ConstantOfShape", "Expand", "Tile", "EPContext", "NoSuchOp", "Relu", "Conv", "MaxPool"]
SIZES = [0, -1, 1, 2, 3, 7, 3000, 2**20, 2**31 - 1, 2**31, 2**62, -(2**63)]


def onnx_model(rng, content):
    """An ONNX model with one or two of its parts changed; a fifth as bytes."""
    if rng.random() < 0.2:
        return bytes_of(rng, content)
    proto = onnx.load_model_from_string(content)
    for _ in range(rng.choice([1, 1, 2])):
        rng.choice([_operator, _attribute, _attribute, _wires, _ends, _weight, _weight, _model, _kernel])(rng, proto.graph, proto)
    return proto.SerializeToString()


def _operator(rng, graph, proto):
    node = rng.choice(graph.node)
    node.op_type = rng.choice(OPERATORS)
    node.domain = rng.choice(["", "", "ai.onnx", "com.microsoft"])


def _attribute(rng, graph, proto):
    nodes = [node for node in graph.node if node.attribute]
    if not nodes:
        return
    node = rng.choice(nodes)
    attribute = rng.choice(node.attribute)
    what = rng.randrange(5)
    if what == 0:
        node.attribute.remove(attribute)
    elif what == 1:
        node.attribute.append(attribute)
    elif what == 2:
        name = attribute.name
        attribute.CopyFrom(helper.make_attribute(name, rng.choice([b"x", 1.5, [0.5], 3, [3, 3]])))
    elif attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(SIZES)
    else:
        attribute.i = rng.choice(SIZES)


def _wires(rng, graph, proto):
    node = rng.choice(graph.node)
    names = [*graph.node[0].input, *(n for item in graph.node for n in item.output), "nowhere", ""]
    wires = rng.choice([node.input, node.output])
    at = rng.randrange(len(wires) + 1)
    wires[at : at + rng.randrange(2)] = rng.choice([[], [rng.choice(names)]])


def _ends(rng, graph, proto):
    ends = rng.choice([graph.input, graph.output])
    tensor = ends[0].type.tensor_type
    changes = [
        lambda: ends.append(rng.choice(ends)),
        ends.pop,
        lambda: setattr(tensor, "elem_type", rng.choice([0, 2, 7, 8, 9, 10, 11, 14, 99])),
        lambda: setattr(rng.choice(tensor.shape.dim), "dim_value", rng.choice(SIZES)),
    ]
    rng.choice(changes)()


def _weight(rng, graph, proto):
    if not graph.initializer:
        return
    tensor = rng.choice(graph.initializer)
    changes = [
        lambda: setattr(tensor, "data_type", rng.choice([0, 2, 3, 6, 7, 8, 9, 10, 11, 14, 16, 99])),
        lambda: setattr(tensor, "raw_data", tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]),
        lambda: setattr(tensor, "raw_data", rng.randbytes(len(tensor.raw_data))),
        lambda: graph.initializer.append(tensor),
        lambda: elsewhere(tensor, location=rng.choice(["/dev/zero", "../x", "bundle.json", "model.onnx", ""])),
        lambda: graph.initializer.remove(tensor),
    ]
    if tensor.dims:
        changes.append(lambda: tensor.dims.__setitem__(rng.randrange(len(tensor.dims)), rng.choice(SIZES)))
    rng.choice(changes)()


def elsewhere(tensor, **stated):
    """State that a tensor's numbers are in another file."""
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in stated.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)


def _model(rng, graph, proto):
    inner = [helper.make_node("Relu", ["a"], ["b"])]
    changes = [
        lambda: setattr(proto.opset_import[0], "version", rng.choice([0, 1, 7, 99, 2**62])),
        lambda: setattr(proto, "ir_version", rng.choice([0, 1, 99, 2**62])),
        lambda: graph.node.insert(0, graph.node.pop()),
        lambda: proto.functions.append(helper.make_function("d", "f", ["a"], ["b"], inner, [])),
        lambda: graph.node.extend(list(graph.node) * rng.choice([1, 50])),
    ]
    rng.choice(changes)()


def _kernel(rng, graph, proto):
    """A convolution whose kernel is enormous and whose padding lets it fit."""
    for node in graph.node:
        if node.op_type == "Conv":
            weight = next((t for t in graph.initializer if t.name == node.input[1]), None)
            if weight is None:
                return
            size = rng.choice([300, 1000])
            del node.attribute[:]
            node.attribute.extend([helper.make_attribute("pads", [size] * 4), helper.make_attribute("kernel_shape", [size, size])])
            weight.CopyFrom(helper.make_tensor(weight.name, TensorProto.FLOAT, [1, 1, size, size], bytes(4 * size * size), raw=True))
            return


def hashed(folder, name):
    """State a file's size and hash again in the bundle's description."""
    path, content = folder / "bundle.json", (folder / name).read_bytes()
    manifest = json.loads(path.read_bytes())
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps(manifest))


def chance(*seed):
    """A source of choices that a name alone decides, in every process and version."""
    return random.Random(":".join(map(str, seed)))


def weights_negated(content):
    """An ONNX model that computes something else, and is as sound as the one before."""
    proto = onnx.load_model_from_string(content)
    tensor = next(item for item in proto.graph.initializer if item.data_type == TensorProto.FLOAT and item.raw_data)
    values = bytearray(tensor.raw_data)
    for byte in range(3, len(values), 4):
        values[byte] ^= 0x80
    tensor.raw_data = bytes(values)
    return proto.SerializeToString()


def keys_repeated(rng, content):
    """A JSON file in which one key of an object stands twice, the second time with another value."""
    data = json.loads(content)
    text = json.dumps(data)
    key = rng.choice(sorted(data))
    again = json.dumps(rng.choice([*VALUES, *data.values()]))
    return rng.choice([f"{{{json.dumps(key)}: {again}, {text[1:]}", f"{text[:-1]}, {json.dumps(key)}: {again}}}"]).encode()


def kept_elsewhere(rng, content, names):
    """An ONNX model whose weights are stated to be in another file."""
    proto = onnx.load_model_from_string(content)
    for tensor in proto.graph.initializer[: rng.choice([1, 3])]:
        size = len(tensor.raw_data)
        tensor.ClearField("raw_data")
        elsewhere(tensor, location=rng.choice(names), offset=rng.choice(SIZES), length=rng.choice([size, *SIZES]))
    return proto.SerializeToString()


def flatbuffer(rng, content):
    """A flatbuffer with an offset, a length or a number of it changed, four bytes at a time; a third as bytes."""
    if rng.random() < 0.34:
        return bytes_of(rng, content)
    changed = bytearray(content)
    # tables lie at both ends, weights between
    ends = [*range(0, min(4096, len(changed) - 4), 4), *range(max(0, len(changed) - 8192) // 4 * 4, len(changed) - 4, 4)]
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.choice(ends)
        old = int.from_bytes(changed[at : at + 4], "little")
        new = rng.choice([0, 1, 4, 2**31 - 1, 2**31, 2**32 - 1, len(changed), old + 4, old - 4, old * 2, rng.randrange(2**32), 2**32 - at])
        changed[at : at + 4] = (new % 2**32).to_bytes(4, "little")
    return bytes(changed)
