"""Files damaged on purpose, reproducibly by a seed: bytes, JSON and TOML values, parts of ONNX models."""

import copy
import hashlib
import json
import math
import random
import tomllib

import onnx
import tomli_w
from onnx import TensorProto, helper

#: Values that are invalid or unusual where a number, a string or a table is expected.
VALUES = [
    *(None, True, False, 0, -1, 1, 2, 3, 7, 10**6, 10**9, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, -1.5, 1e-300, 1e300, 1e15, 1e-15, 3.4e38),
    *("", "x", "cpu", "gpu", "..", "/", "a" * 5000, "\x00", "\x1b[31m", "bundle.json", "/dev/zero", "{}", "1" * 400),
    *([], {}, [[]], [0], [-1, 10**9], {"": ""}, {"x": {"x": {"x": []}}}),
]

#: Numbers that TOML can state and standard JSON cannot.
NUMBERS = [math.inf, -math.inf, math.nan]


def places(value, path=()):
    """Paths to all values in nested lists and dictionaries."""
    result = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        result += places(item, (*path, key))
    return result


def swapped(rng, data, values):
    """A copy of nested data with one value replaced, removed, duplicated, or overwritten by another value of the data."""
    data = copy.deepcopy(data)
    *parents, last = rng.choice(places(data))
    parent = data
    for key in parents:
        parent = parent[key]
    choice = rng.randrange(16)
    same_type = [value for value in values if type(value) is type(parent[last])]
    if choice >= 8 and same_type:
        # a value of the same type passes the schema, so that later checks are tested
        parent[last] = copy.deepcopy(rng.choice(same_type))
    elif choice == 0:
        del parent[last]
    elif choice == 1 and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[last]))
    elif choice == 2 and isinstance(parent, dict):
        parent[f"{last}x"] = parent.pop(last)
    elif choice == 3 and isinstance(parent[last], int | float) and not isinstance(parent[last], bool):
        parent[last] = rng.choice([-1, 2, 10, 1000, 10**6]) * parent[last]
    elif choice == 4:
        *keys, end = rng.choice(places(data))
        source = data
        for key in keys:
            source = source[key]
        parent[last] = copy.deepcopy(source[end])
    else:
        parent[last] = copy.deepcopy(rng.choice(values))
    return data


def bytes_of(rng, content):
    """A copy of a file with bytes flipped, removed or inserted."""
    content = bytearray(content)
    choice = rng.randrange(5)
    start = rng.randrange(max(1, len(content)))
    if choice == 0:
        del content[start:]
    elif choice == 1:
        content[start:start] = rng.randbytes(rng.choice([1, 8, 300]))
    elif choice == 2:
        del content[start : start + rng.choice([1, 4, 64])]
    else:
        for _ in range(rng.choice([1, 1, 3, 20])):
            if content:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def json_text(rng, content):
    """A JSON file with one invalid or unusual value, or with very deep nesting."""
    if rng.random() < 0.03:
        return b'{"schema": 1, "design": ' + rng.choice([b"[", b'{"a":']) * 50_000
    return json.dumps(swapped(rng, json.loads(content), [*VALUES, *NUMBERS])).encode()


def toml_text(rng, content):
    """A TOML file with one invalid or unusual value, a nesting or key that is too deep, or damaged bytes."""
    choice = rng.random()
    if choice < 0.03:
        return content + b"\nx = " + b"[" * 5000
    if choice < 0.06:
        return content + b"\n[" + b".".join([b"a"] * 3000) + b"]\n"
    if choice < 0.2:
        return bytes_of(rng, content)
    data = swapped(rng, tomllib.loads(content.decode()), [*(v for v in VALUES if v is not None), *NUMBERS])
    return tomli_w.dumps(data).encode()


OPERATORS = ["Loop", "If", "Scan", "RandomNormal", "ConstantOfShape", "Expand", "Tile", "EPContext", "NoSuchOp", "Relu", "Conv", "MaxPool"]
SIZES = [0, -1, 1, 2, 3, 7, 3000, 2**20, 2**31 - 1, 2**31, 2**62, -(2**63)]


def onnx_model(rng, content):
    """An ONNX model with one or two changed parts; in one case of five, with damaged bytes."""
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
    choice = rng.randrange(5)
    if choice == 0:
        node.attribute.remove(attribute)
    elif choice == 1:
        node.attribute.append(attribute)
    elif choice == 2:
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
    """Mark a tensor's values as stored in another file."""
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
    """Give a convolution an enormous kernel, and a padding that makes the kernel fit."""
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
    """Update a file's size and hash in the bundle's manifest."""
    path, content = folder / "bundle.json", (folder / name).read_bytes()
    manifest = json.loads(path.read_bytes())
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps(manifest))


def chance(*seed):
    """A random generator that depends on the seed only: equal in every process and Python version."""
    return random.Random(":".join(map(str, seed)))


def weights_negated(content):
    """A valid ONNX model with other results: the weights of one tensor are negated."""
    proto = onnx.load_model_from_string(content)
    tensor = next(item for item in proto.graph.initializer if item.data_type == TensorProto.FLOAT and item.raw_data)
    values = bytearray(tensor.raw_data)
    for byte in range(3, len(values), 4):
        values[byte] ^= 0x80
    tensor.raw_data = bytes(values)
    return proto.SerializeToString()


def keys_repeated(rng, content):
    """A JSON file in which one key of an object occurs twice, with different values."""
    data = json.loads(content)
    text = json.dumps(data)
    key = rng.choice(sorted(data))
    value = json.dumps(rng.choice([*VALUES, *data.values()]))
    return rng.choice([f"{{{json.dumps(key)}: {value}, {text[1:]}", f"{text[:-1]}, {json.dumps(key)}: {value}}}"]).encode()


def kept_elsewhere(rng, content, names):
    """An ONNX model whose weights are marked as stored in another file."""
    proto = onnx.load_model_from_string(content)
    for tensor in proto.graph.initializer[: rng.choice([1, 3])]:
        size = len(tensor.raw_data)
        tensor.ClearField("raw_data")
        elsewhere(tensor, location=rng.choice(names), offset=rng.choice(SIZES), length=rng.choice([size, *SIZES]))
    return proto.SerializeToString()


def flatbuffer(rng, content):
    """A flatbuffer with up to five changed 32-bit numbers (offsets, lengths, values); in one case of three, with damaged bytes."""
    if rng.random() < 0.34:
        return bytes_of(rng, content)
    changed = bytearray(content)
    # tables are at both ends of the file, weights between them
    ends = [*range(0, min(4096, len(changed) - 4), 4), *range(max(0, len(changed) - 8192) // 4 * 4, len(changed) - 4, 4)]
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.choice(ends)
        old = int.from_bytes(changed[at : at + 4], "little")
        new = rng.choice([0, 1, 4, 2**31 - 1, 2**31, 2**32 - 1, len(changed), old + 4, old - 4, old * 2, rng.randrange(2**32), 2**32 - at])
        changed[at : at + 4] = (new % 2**32).to_bytes(4, "little")
    return bytes(changed)
