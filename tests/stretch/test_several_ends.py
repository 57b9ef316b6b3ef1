"""Networks of several inputs and outputs through the whole of the main job, against torch."""

import warnings
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from hypothesis import HealthCheck, given, settings  # noqa: E402 - torch may be missing

import stretch  # noqa: E402
from predictors.devices import load_device  # noqa: E402
from scheduler import Session  # noqa: E402
from scheduler.bundle.load import load_bundle  # noqa: E402
from scheduler.checks.verify import verify_bundle  # noqa: E402
from scheduler.simulate.predicted import predicted_trace  # noqa: E402
from stretch.capture import capture  # noqa: E402
from stretch.capture.structure import keyed  # noqa: E402
from stretch.models import detection, load_model, segmentation  # noqa: E402
from stretch.planning.design.branch_design import DesignDraft  # noqa: E402
from stretch.planning.design.resolve import resolve_design  # noqa: E402
from stretch.transform import build  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.stretch.several import FORMS, assert_equal, form, networks, shapes  # noqa: E402

pytestmark = pytest.mark.torch

LOOSE = {"alpha": 1000.0, "beta": 1000.0, "balance": 0.001, "macs": (0.4, 2.0), "segment_macs": 0.1}


def inputs_of(graph, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(op.shape, generator=generator) for op in graph.inputs]


@pytest.mark.slow
@given(networks())
@settings(max_examples=examples(25), deadline=None)
def test_whole_design_of_any_network_returns_what_the_network_returns(module):
    captured = capture(module, shapes(module))
    design = resolve_design(DesignDraft([]), captured.graph, "mi9", {"cpu": 4, "gpu": 4}, "cpu")
    model = build(captured, design)
    x = inputs_of(captured.graph)
    with torch.no_grad():
        assert_equal(model(*x), module(*x))
    again = build(captured, design)
    for parameter in again.parameters():
        parameter.data.zero_()
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert_equal(again(*x), model(*x), slack=0)


@pytest.mark.representatives(2)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("asked", [{"lossless": True}, {}], ids=["exact", "stretched"])
def test_bundle_computes_what_torch_computes_under_the_names_of_what_is_returned(tmp_path, name, asked):
    module, given_shapes = form(name)
    result = stretch.branch(module, "mi9", out=tmp_path / "b", input_shape=given_shapes, processors=("cpu", "gpu"), **(asked or LOOSE))
    x = inputs_of(result.plan.graph)
    with torch.no_grad():
        want, original = result.model(*x), module(*x)
    if result.plan.exact:
        assert_equal(want, original)
    assert [key for key, _ in keyed(want)] == [key for key, _ in keyed(original)]
    fed = {op.name: each.numpy() for op, each in zip(result.plan.graph.inputs, x, strict=True)}
    with Session(tmp_path / "b", {"cpu": "cpu", "gpu": "cpu"}) as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = [session.run(fed), session.submit(fed).result(60)]
    named = dict(keyed(want))
    for got in answers:
        got = got if isinstance(got, dict) else {"output": got}
        for key, value in got.items():
            assert np.abs(value - named[key].numpy()).max() <= 1e-4 * max(1e-3, float(named[key].abs().max()))
        assert set(got) == {key for key, value in named.items() if isinstance(value, torch.Tensor)}
    assert verify_bundle(tmp_path / "b").ok


@pytest.mark.slow
def test_prediction_is_what_the_state_machine_comes_to_under_predicted_times(tmp_path):
    for number, name in enumerate(("pyramid", "towers", "deep")):
        module, given_shapes = form(name)
        result = stretch.branch(module, "mi9", out=tmp_path / str(number), input_shape=given_shapes, processors=("cpu", "gpu"), **LOOSE)
        trace = predicted_trace(load_bundle(tmp_path / str(number)).manifest, load_device("mi9"))
        assert trace.makespan_ms == pytest.approx(result.plan.run.makespan_ms, rel=1e-4)
        assert result.plan.predicted_run.ms() == pytest.approx(result.plan.run.makespan_ms, rel=1e-6)


def test_constants_are_returned_and_told():
    module, given_shapes = form("towers")
    result = stretch.branch(module, "mi9", input_shape=given_shapes, processors=("cpu", "gpu"), **LOOSE)
    assert any("`output_1_note`" in warning for warning in result.warnings)
    with torch.no_grad():
        assert result.model(*inputs_of(result.plan.graph))[1]["note"] is None


@pytest.mark.slow
@given(networks())
@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bundle_of_any_network_computes_what_torch_computes(tmp_path_factory, module):
    folder = Path(tmp_path_factory.mktemp("several"))
    result = stretch.branch(module, "mi9", out=folder / "b", input_shape=shapes(module), processors=("cpu", "gpu"), lossless=True)
    x = inputs_of(result.plan.graph)
    with torch.no_grad():
        want = module(*x)
    with Session(folder / "b", {"cpu": "cpu", "gpu": "cpu"}) as session:
        got = session.run({op.name: each.numpy() for op, each in zip(result.plan.graph.inputs, x, strict=True)})
    named = dict(keyed(want))
    for key, value in (got if isinstance(got, dict) else {next(iter(named)): got}).items():
        assert np.abs(value - named[key].numpy()).max() <= 1e-4 * max(1e-3, float(named[key].abs().max()))
    assert verify_bundle(folder / "b").ok


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(segmentation.CHECKED | detection.CHECKED))
def test_torchvisions_dense_networks_are_branched_and_run_equal_to_torch(tmp_path, name):
    loaded = load_model(name, weights="none")
    shape = (1, 3, 96, 96)
    result = stretch.branch(
        loaded.module, "mi9", out=tmp_path / "b", input_shape=shape, processors=("cpu", "gpu"), controls=False, alpha=1000.0, beta=1000.0
    )
    (x,) = inputs_of(result.plan.graph)
    with torch.no_grad():
        want, original = dict(keyed(result.model(x))), dict(keyed(loaded.module(x)))
    assert want.keys() == original.keys()
    with Session(tmp_path / "b", {"cpu": "cpu", "gpu": "cpu"}) as session:
        got = session.run(x.numpy())
    for key, value in (got if isinstance(got, dict) else {next(iter(want)): got}).items():
        assert value.shape == tuple(original[key].shape)
        assert np.abs(value - want[key].numpy()).max() <= 1e-4 * float(want[key].abs().max())
    assert any(len(part.branches) > 1 for part in result.plan.design.segments)
