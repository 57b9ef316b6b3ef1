import pytest

torch = pytest.importorskip("torch")

from stretch.capture import capture  # noqa: E402 - torch may be missing
from stretch.emit.network import branched_sources, captured_sources  # noqa: E402
from stretch.emit.package import write_package  # noqa: E402
from stretch.transform import build  # noqa: E402
from tests.stretch.capture.patterns import PATTERNS, network  # noqa: E402
from tests.stretch.designs import cpu_and  # noqa: E402
from tests.stretch.several import FORMS, form  # noqa: E402
from tests.stretch.stages.test_reopen import NETWORKS  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_branches_of_every_kind_compute_as_code_what_they_compute_as_a_model(tmp_path, name):
    found, design = NETWORKS[name]()
    model = build(found, design)
    sources = branched_sources(found.graph, model)
    _, error = write_package(tmp_path / "net", sources, model, "A network.")
    assert error <= 1e-4
    classes = sum(text.count("\nclass Branch") for text in sources.modules.values())
    assert classes == sum(len(part.branches) for part in design.segments)


@pytest.mark.representatives(6)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_network_of_every_pattern_computes_as_code_what_it_computes(tmp_path, pattern):
    captured = capture(network(pattern), (1, 3, 8, 8), "net")
    _, error = write_package(tmp_path / "net", captured_sources(captured), captured.module, "A network.")
    assert error <= 1e-4


def test_code_has_the_names_of_the_parent_and_its_tensors_are_told_apart_by_branch(captured):
    found = captured("tiny_resnet")
    model = build(found, cpu_and("gpu", found.graph, "sum"))
    sources = branched_sources(found.graph, model)
    assert set(sources.tensors) == {key for key in model.state_dict() if not key.endswith("num_batches_tracked")}


def test_names_of_a_network_cannot_leave_their_strings(captured):
    found = captured("tiny_resnet")
    graph = type(found.graph).build('x"""\nimport os', found.graph.ops, found.graph.outputs)
    found = type(found)(graph, found.weights, found.module)
    for text in captured_sources(found).modules.values():
        assert "import os" not in text.split("class ")[0].replace("import os_", "")
        compile(text, "network.py", "exec")
        assert "\nimport os" not in text


@pytest.mark.parametrize("name", FORMS)
def test_network_of_several_inputs_and_outputs_takes_and_returns_as_code_what_it_does(tmp_path, name):
    module, shapes = form(name)
    captured = capture(module, shapes, name)
    _, error = write_package(tmp_path / "net", captured_sources(captured), module, "A network.")
    assert error <= 1e-4
