"""Archives of torch.export from anywhere: records, weights, and what they state."""

import collections
import json
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.models.pt2 import read_module
from stretch.models.pt2.file import Archive, ExportedCall, NamedArgument, TensorMeta, _tensor, fixed, read_weights
from stretch.models.pt2.network import bound, plain_value, rebuilt
from tests.effort import examples
from tests.stretch.models.pt2.archives import CALLS, WEIGHTS, Small, changed, save

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.utils._pytree import tree_flatten, treespec_dumps  # noqa: E402


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save(tmp_path_factory.mktemp("pt2") / "m.pt2", Small().eval())


def network(saved, out, change):
    def applied(program):
        change(program)
        return program

    return changed(saved, CALLS, applied, out)


def set_target(program, target):
    program["graph_module"]["graph"]["nodes"][2]["target"] = target


#: What a file may state to have something done that is no network.
TARGETS = [
    "torch.load",
    "torch.ops.aten.from_file.default",
    "torch.ops.aten.set_.source_Tensor",
    "torch.ops.aten.save.default",
    "torch.ops.aten.resize_.default",
    "torch.ops.aten.bernoulli.default",
    "torch.ops.aten._print.default",
    "torch.ops.aten.relu.__class__",
    "torch.ops.aten.__dict__.x",
    "torch.ops.aten..",
    "torch.ops.higher_order.cond",
    "torch.ops.profiler._record_function_enter.default",
    "_operator.attrgetter",
    "os.system",
    "",
]


@pytest.mark.representatives(6)
@pytest.mark.parametrize("target", TARGETS)
def test_call_of_anything_but_an_operator_of_networks_is_refused(saved, tmp_path, target):
    path = network(saved, tmp_path / "m.pt2", lambda program: set_target(program, target))
    with pytest.raises(StretchError, match=r"cannot be read: ") as caught:
        read_module(path)
    assert "\n" not in caught.value.message


def test_sample_inputs_are_not_opened(saved, tmp_path):
    import os
    import pickle

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    path = changed(saved, "data/sample_inputs/model.pt", lambda _: pickle.dumps(Evil()), tmp_path / "m.pt2")
    read_module(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda p: p["schema_version"].update(major=9), "has version 9 of torch.export's schema"),
        (lambda p: p.pop("graph_module"), "is damaged"),
        (lambda p: p["graph_module"]["graph"].update(nodes=[3]), "is damaged"),
        (lambda p: p["graph_module"]["graph"].update(nodes=[]), "it reads `linear`, which nothing writes"),
        (lambda p: p["graph_module"]["graph"].update(tensor_values={}), "does not state the shape of its input"),
        (lambda p: p["graph_module"]["graph"]["tensor_values"]["x"].update(dtype=5), "takes whole numbers as its input `x`"),
        (lambda p: p["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0].update(as_int=1 << 39), "which no network reads"),
        (lambda p: p["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0].update(as_int=-1), "which no network reads"),
        (lambda p: p["graph_module"]["graph"]["nodes"][0]["inputs"].pop(1), "its argument `weight` is missing"),
        (lambda p: p["graph_module"]["graph"]["nodes"][0]["inputs"][3].update(name="w"), "has no argument `w`"),
        (lambda p: p["graph_module"]["graph"]["nodes"][0]["inputs"][3].update(arg={"as_string": "x"}), "cannot be read"),
        (lambda p: p["graph_module"]["graph"]["nodes"][0]["inputs"][3].update(arg={}), "which no network of tensors has"),
        (lambda p: p["graph_module"]["graph"]["nodes"][0]["inputs"][0].update(arg={"as_tensor": {"name": "q"}}), "which nothing writes"),
        (lambda p: p["graph_module"]["signature"].update(output_specs=[]), "holds more than its outputs"),
        (lambda p: p["graph_module"]["signature"].update(output_specs=[{"user_output": {}}]), "it does not state what it returns"),
        (lambda p: p["graph_module"]["signature"]["output_specs"].append({"user_output": {"arg": {"as_none": True}}}), "holds fewer than"),
        (lambda p: p["graph_module"]["signature"]["output_specs"][0]["user_output"].update(arg={"as_ints": [1]}), "what is no tensor"),
        (lambda p: p["graph_module"]["signature"]["output_specs"][0]["user_output"].update(arg={"as_none": True}), "computes nothing"),
        (lambda p: p["graph_module"]["module_call_graph"][0]["signature"].update(out_spec="{"), "is no JSON"),
        (lambda p: p["graph_module"]["signature"]["input_specs"][0].update(custom_obj={}), "cannot be read"),
        (lambda p: p["graph_module"]["signature"]["input_specs"].append({"token": {}}), "an input of the kind `token`"),
        (lambda p: p["graph_module"]["signature"]["input_specs"][0]["parameter"].update(parameter_name="zz"), "it does not hold `zz`"),
    ],
)
def test_archive_that_states_what_is_none_is_refused_in_one_sentence(saved, tmp_path, change, problem):
    path = network(saved, tmp_path / "m.pt2", change)
    with pytest.raises(StretchError, match=problem) as caught:
        read_module(path)
    assert "\n" not in caught.value.message
    assert "m.pt2" in caught.value.message


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_archive_with_changed_bytes_is_read_or_refused_and_nothing_else(saved, tmp_path_factory, data):
    content = bytearray(saved.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    path = tmp_path_factory.getbasetemp() / "changed.pt2"
    path.write_bytes(content)
    _read_or_refused(path)


def _places(value, at=()):
    """Every place in what JSON gave."""
    yield at
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _places(item, (*at, key))


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 1 << 40) | st.floats(allow_nan=False) | st.sampled_from(["", "x", "conv2d", "same"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["as_int", "as_tensor", "name", "as_ints"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_archive_with_anything_in_the_place_of_what_it_states_is_read_or_refused(saved, tmp_path_factory, data):
    def change(program):
        graph = program["graph_module"]
        places = [
            place
            for place in _places({key: graph[key] for key in ("graph", "signature", "module_call_graph")})
            if place and "metadata" not in place
        ]
        *path, last = data.draw(st.sampled_from(places))
        at = graph
        for key in path:
            at = at[key]
        at[last] = data.draw(_ANYTHING)
        return program

    _read_or_refused(changed(saved, CALLS, change, tmp_path_factory.getbasetemp() / "other.pt2"))


def _read_or_refused(path):
    try:
        module = read_module(path)
    except StretchError as error:
        message = error.message
        assert "\n" not in message
    else:
        assert len(module.input_shape) >= 1


def written(path, **options):
    """An archive of one record beside those that mark it."""
    with zipfile.ZipFile(path, "w", **options) as zip_file:
        for name, content in (("archive_format", "pt2"), ("archive_version", "0"), ("a", "x" * 1000)):
            zip_file.writestr(f"m/{name}", content)
    return path


def test_records_are_read_by_their_names(saved):
    archive = Archive(saved)
    assert {"models/model.json", "data/weights/weight_0"} <= set(archive.names)
    assert len(archive.read("data/weights/weight_0")) == 4 * 3 * 9 * 4
    with pytest.raises(StretchError, match=r"m\.pt2 has no record `absent`"):
        archive.read("absent")


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x05\x06" + bytes(18), b"PK\x03\x04" + bytes(60)])
def test_file_that_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "m.pt2").write_bytes(content)
    with pytest.raises(StretchError, match=r"is no archive of torch\.export"):
        Archive(tmp_path / "m.pt2")


def test_missing_file_is_named(tmp_path):
    with pytest.raises(StretchError, match="cannot read"):
        Archive(tmp_path / "m.pt2")


def test_plain_zip_file_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as zip_file:
        zip_file.writestr("m/a", "b")
    with pytest.raises(StretchError, match=r"is no archive of torch\.export"):
        Archive(tmp_path / "m.pt2")


def test_compressed_records_are_refused_before_they_grow(tmp_path):
    path = written(tmp_path / "m.pt2", compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(StretchError, match=r"its records are larger than the file|is compressed or encrypted"):
        Archive(path)


def test_record_that_is_there_twice_is_refused(tmp_path):
    path = written(tmp_path / "m.pt2")
    with zipfile.ZipFile(path, "a") as zip_file:
        zip_file.writestr("other/a", "y")
    with pytest.raises(StretchError, match="it has two records `a`"):
        Archive(path)


def test_record_with_changed_bytes_is_refused(tmp_path):
    path = written(tmp_path / "m.pt2")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"xxx", b"xyx", 1))
    with pytest.raises(StretchError, match=r"record `a` of .*m\.pt2 is damaged"):
        Archive(path).read("a")


def meta(sizes, strides, offset=0, dtype=7):
    return TensorMeta(dtype, [{"as_int": n} for n in sizes], [{"as_int": n} for n in strides], {"as_int": offset})


def test_pickled_weight_is_refused_and_not_opened(tmp_path):
    def pickled(config):
        config["config"]["head.bias"]["use_pickle"] = True
        return config

    path = changed(save(tmp_path / "m.pt2", Small().eval()), WEIGHTS, pickled)
    with pytest.raises(StretchError, match=r"`head\.bias` is pickled, and pickles can execute anything"):
        read_weights(Archive(path), "model")


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"config": {"a": {}}}', b"\xff\xfe", b"[" * 100_000])
def test_list_of_weights_that_is_none_is_refused(tmp_path, content):
    path = changed(save(tmp_path / "m.pt2", Small().eval()), WEIGHTS, lambda _: content)
    with pytest.raises(StretchError, match="its list of weights is damaged"):
        read_weights(Archive(path), "model")


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 9)), max_size=4), st.integers(-1, 9), st.integers(0, 40))
def test_weight_is_what_numpy_sees_or_refused(axes, offset, elements):
    sizes, strides = [size for size, _ in axes], [stride for _, stride in axes]
    memory = np.arange(elements, dtype=np.float32)
    inside = min([offset, *strides]) >= 0 and offset + sum((n - 1) * s for n, s in axes) < elements
    if not inside and 0 not in sizes:
        with pytest.raises(StretchError, match=r"reads beyond its|has sizes"):
            _tensor("w", meta(sizes, strides, offset), memory.tobytes())
    elif inside:
        wanted = np.lib.stride_tricks.as_strided(memory[offset:], sizes, [4 * n for n in strides])
        np.testing.assert_array_equal(_tensor("w", meta(sizes, strides, offset), memory.tobytes()).numpy(), wanted)


@pytest.mark.parametrize("size", [{}, {"as_int": "3"}, {"as_int": True}, {"as_expr": {}}, {"as_int": 1 << 60}])
def test_size_that_is_no_number_is_refused(size):
    with pytest.raises(StretchError, match="which is no number"):
        fixed(size)


def test_view_of_one_number_as_a_giant_is_refused():
    with pytest.raises(StretchError, match="reads beyond"):
        _tensor("w", meta([1 << 20, 1 << 20], [0, 0]), bytes(4))


def test_complex_numbers_are_refused():
    with pytest.raises(StretchError, match="element type 9, which no network computes with"):
        _tensor("w", meta([1], [1], dtype=9), bytes(8))


def node(**given):
    return ExportedCall("", [NamedArgument(name, arg) for name, arg in given.items()], [])


@pytest.mark.parametrize(
    "arg",
    [
        {},
        {"as_int": 1, "as_none": True},
        {"as_int": "3"},
        {"as_ints": 3},
        {"as_float": "x"},
        {"as_graph": {}},
        {"as_scalar_type": 9},
        {"as_s": 1},
    ],
)
def test_argument_that_no_network_has_is_refused(arg):
    with pytest.raises(StretchError):
        plain_value(arg)


def test_name_of_what_is_changed_in_place_is_that_of_what_is_read():
    assert (
        bound(torch.ops.aten.dropout.default, node(self={"as_int": 1}, p={"as_float": 0.5}, train={"as_bool": False}), plain_value)["input"]
        == 1
    )


TREES = st.recursive(
    st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(TREES)
def test_structure_of_more_or_fewer_values_is_refused(tree):
    values, spec = tree_flatten(tree)
    with pytest.raises(StretchError, match="holds fewer than its"):
        rebuilt(treespec_dumps(spec), {}, [*values, 0])
    if values:
        with pytest.raises(StretchError, match="holds more than its outputs"):
            rebuilt(treespec_dumps(spec), {}, values[1:])


def test_ordered_dictionaries_are_dictionaries_in_their_order():
    values, spec = tree_flatten(collections.OrderedDict(b=1, a=2))
    result, other = rebuilt(treespec_dumps(spec), {}, values)
    assert (list(result.items()), other) == ([("b", 1), ("a", 2)], [])


LEAF = {"type": None, "context": None, "children_spec": []}


def spec(kind, context, *parts):
    return json.dumps([1, {"type": kind, "context": context, "children_spec": list(parts)}])


@pytest.mark.parametrize(
    ("kind", "context", "expected"),
    [
        ("collections.namedtuple", "Pair", {"p": 1, "q": 2}),
        ("collections.namedtuple", "Other", (1, 2)),
        ("a.Dataclass", '[["u", "v"], []]', {"u": 1, "v": 2}),
        ("a.ModelOutput", '["u", "v"]', {"u": 1, "v": 2}),
        ("a.Class", "os.system", (1, 2)),
        ("a.Class", '["u", "u"]', (1, 2)),
        ("a.Class", None, (1, 2)),
    ],
)
def test_containers_of_somebodys_classes_are_dictionaries_or_tuples_and_told(kind, context, expected):
    built, other = rebuilt(spec(kind, context, LEAF, LEAF), {"Pair": ["p", "q"]}, [1, 2])
    assert (built, other) == (expected, [context if kind.startswith("collections") else kind])


def test_values_without_a_structure_are_a_tuple_and_one_is_itself():
    assert rebuilt("", {}, [1]) == (1, [])
    assert rebuilt("", {}, [1, 2]) == ((1, 2), [])


def deep(levels):
    result = LEAF
    for _ in range(levels):
        result = {"type": "builtins.tuple", "context": "null", "children_spec": [result]}
    return json.dumps([1, result])


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "1",
        "[]",
        "[1, 2]",
        '[1, {"type": 3}]',
        deep(40),
        "[" * 100_000,
        spec("builtins.dict", "null", LEAF),
        spec("builtins.dict", '["a", "b"]', LEAF),
    ],
)
def test_what_is_no_structure_is_refused(text):
    with pytest.raises(StretchError, match="that it returns") as caught:
        rebuilt(text, {}, [1])
    assert "\n" not in caught.value.message
