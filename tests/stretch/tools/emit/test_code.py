"""Python code of a network: names, literals, and classes that compute what their modules do."""

import keyword
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from predictors.errors import StretchError, UsageError
from predictors.graph import Op, OpGraph
from stretch.network.capture import capture
from stretch.network.capture.results import Result
from stretch.tools.emit.package import branched_sources, captured_sources, check_package, returned_code, write_class, write_package
from stretch.tools.emit.rules import attribute, code_of, literal
from stretch.transform import build
from tests.scheduler.delegates import graphs
from tests.stretch.designs import cpu_and
from tests.stretch.network.capture.patterns import PATTERNS, Calling, network
from tests.stretch.several import FORMS, form
from tests.stretch.stages.test_stages import NETWORKS

A, B = Result("a", "out"), Result("b", "aux")


@pytest.mark.parametrize("value", ["it's", 'a"b', "{0}", "back\\slash", "two\nlines", object(), {"a": 1}, 1j])
def test_value_that_could_break_out_of_a_literal_is_refused(value):
    with pytest.raises(StretchError, match="cannot be written as Python code"):
        literal(value)
    with pytest.raises(StretchError, match="cannot be written as Python code"):
        returned_code((A, object()), {"a": "x"})


@given(name=st.text(max_size=12) | st.sampled_from([*keyword.kwlist, "train", "forward", "self", "cpu", "0"]))
def test_attribute_is_a_name_that_python_and_torch_do_not_use(name):
    built = attribute(name)
    assert built.isidentifier()
    assert built.isascii()
    assert not keyword.iskeyword(built)
    nn.Module().add_module(built, nn.ReLU())


def instantiate(written):
    """Instantiate a written class with nothing but torch and its helpers in scope."""
    names = {"nn": nn, "torch": torch, "F": F, **{helper.__name__: helper for helper in written.helpers}}
    exec(written.text, names)
    return names[written.name]().eval()


@given(case=st.sampled_from(graphs.ALL_KIND_NAMES).flatmap(graphs.graphs))
def test_class_of_every_operator_computes_what_its_torch_module_computes(case):
    graph, weights, x = case
    written = write_class("Net", graph, "One operator.")
    net = instantiate(written)
    state = {written.key(op, key): torch.from_numpy(value) for op, named in weights.items() for key, value in named.items()}
    keys = net.load_state_dict(state, strict=False)
    assert (keys.unexpected_keys, {key.rpartition(".")[2] for key in keys.missing_keys} - {"num_batches_tracked"}) == ([], set())
    with torch.inference_mode():
        got, want = net(torch.from_numpy(x)), torch.from_numpy(graphs.computed(graph, weights, x)[graph.output])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * max(1.0, float(want.abs().max())))


def test_unused_input_is_still_a_parameter():
    ops = [*(Op(name, "input", attrs={"shape": (1, 2)}) for name in "ab"), Op("r", "relu", ("b",))]
    net = instantiate(write_class("Net", OpGraph.build("net", ops, "r"), "One of two."))
    assert net(torch.ones(1, 2), -torch.ones(1, 2)).tolist() == [[0.0, 0.0]]


def error_of(folder, sources, module):
    """Return the error of the written code against the module."""
    return write_package(folder / "net", sources, module, "A network.")[1]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_code_of_branches_of_every_kind_computes_what_the_model_does(tmp_path, name):
    result, design = NETWORKS[name]()
    model = build(result, design)
    sources = branched_sources(result.graph, model)
    assert error_of(tmp_path, sources, model) <= 1e-4
    classes = sum(text.count("\nclass Branch") for text in sources.modules.values())
    assert classes == sum(len(part.branches) for part in design.segments)


@pytest.mark.representatives(6 + len(FORMS))
@pytest.mark.parametrize("case", [*PATTERNS, *FORMS])
def test_code_of_every_pattern_and_of_several_inputs_and_outputs_computes_what_the_network_does(tmp_path, case):
    module, shapes = form(case) if case in FORMS else (network(case), (1, 3, 8, 8))
    assert error_of(tmp_path, captured_sources(capture(module, shapes, "net")), module) <= 1e-4


def test_code_has_the_tensor_names_of_the_branched_model(captured):
    result = captured("tiny_resnet")
    model = build(result, cpu_and("gpu", result.graph, "sum"))
    keys = {key for key in model.state_dict() if not key.endswith("num_batches_tracked")}
    assert set(branched_sources(result.graph, model).tensors) == keys


def test_name_of_a_network_cannot_inject_code(captured):
    result = captured("tiny_resnet")
    graph = type(result.graph).build('x"""\nimport os', result.graph.ops, result.graph.outputs)
    result = type(result)(graph, result.weights, result.module)
    for text in captured_sources(result).modules.values():
        assert "import os" not in text.split("class ")[0].replace("import os_", "")
        compile(text, "network.py", "exec")
        assert "\nimport os" not in text


Pair = namedtuple("Pair", "one other")


@dataclass
class Heads:
    scores: object
    boxes: object


@pytest.mark.parametrize(
    ("template", "value"),
    [
        (A, 1),
        ((A, B), (1, 2)),
        ((A,), (1,)),
        ([A, [B]], [1, [2]]),
        (OrderedDict(out=A, aux={"deep": (B, None, 0.5)}), {"out": 1, "aux": {"deep": (2, None, 0.5)}}),
        ({3: A}, {3: 1}),
        (Pair(A, B), (1, 2)),
        (Heads(A, [B]), {"scores": 1, "boxes": [2]}),
    ],
)
def test_code_returns_the_structure_of_the_results(template, value):
    assert eval(returned_code(template, {"a": "x", "b": "y"}), {"x": 1, "y": 2}) == value


def test_only_calls_of_torch_operators_are_written():
    graph = capture(Calling(lambda x, conv: torch.cumsum(conv(x), 3), nn.Conv2d(3, 4, 1)), (1, 3, 8, 8), "net").graph
    op = next(op for op in graph.ops if op.kind == "opaque")
    assert "torch.ops.aten.cumsum.default({0}, 3)" in code_of(op, graph.input_shapes(op)).expression
    for old, new, reason in (
        ("cumsum.default", "nothing.default", "no operator"),
        ('[{"read":0},3]', '[{"read":0},"x\'); print(1"]', "cannot be written as Python code"),
    ):
        assert old in op.attrs["calls"]
        with pytest.raises(StretchError, match=reason):
            code_of(Op(op.name, "opaque", op.inputs, op.attrs | {"calls": op.attrs["calls"].replace(old, new)}), graph.input_shapes(op))


def test_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "net").mkdir()
    check_package(tmp_path / "net")
    (tmp_path / "net" / "mine").touch()
    with pytest.raises(UsageError, match="there is something at"):
        check_package(tmp_path / "net")
    with pytest.raises(UsageError, match="there is no folder"):
        check_package(tmp_path / "no" / "net")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda all: {key: value * 2 for key, value in all.items()}, "computes something else"),
        (lambda all: dict([*all.items()][1:]), "the package lacks"),
    ],
)
def test_package_that_lacks_a_tensor_or_computes_something_else_is_not_written(captured, tmp_path, change, reason):
    result = captured("tiny_resnet")
    sources = captured_sources(result)
    sources.tensors = change(sources.tensors)
    with pytest.raises(StretchError, match=reason):
        write_package(tmp_path / "net", sources, result.module, "A network.")
    assert list(tmp_path.iterdir()) == []
