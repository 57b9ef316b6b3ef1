"""Archives from anywhere: what cannot be read is one sentence."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.models.pt2 import read_module
from tests.effort import examples
from tests.stretch.models.pt2.archives import CALLS, Small, changed, save

pytestmark = pytest.mark.torch


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
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _places(each, (*at, key))


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
