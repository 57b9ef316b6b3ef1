"""A branched network that its owner trains, changes and saves."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from predictors.errors import StretchError, UsageError  # noqa: E402
from scheduler.bundle.load import load_bundle  # noqa: E402
from scheduler.runtime.session import Session  # noqa: E402
from stretch.api import branch  # noqa: E402
from stretch.api.arguments import as_it_is, fingerprint  # noqa: E402
from stretch.api.main_job import UNKNOWN_ACCURACY  # noqa: E402
from stretch.planning.config import PlanConfig  # noqa: E402
from stretch.transform import build  # noqa: E402
from tests import onnx_runtime  # noqa: E402
from tests.stretch.api import snapshot  # noqa: E402
from tests.stretch.designs import cpu_and  # noqa: E402

pytestmark = pytest.mark.torch

#: Tiny networks are too small for the phone's links, so any share of communication is allowed here.
LOOSE = PlanConfig(alpha=1000.0, beta=1000.0, macs=(0.5, 2.0), segment_macs=0.1)


@pytest.fixture
def made():
    """A network in branches, fresh for every test."""
    return branch("tiny_resnet", "pixel6", config=LOOSE, weights="none")


def train(model, steps=3):
    """A few real steps, which change every weight and statistic that is not frozen."""
    torch.manual_seed(0)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    model.train()
    for _ in range(steps):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 3, 32, 32)), torch.randint(10, (8,)))
        loss.backward()
        optimiser.step()


def expected(model, x):
    """What a network answers, by a copy in evaluation mode."""
    with torch.inference_mode():
        return copy.deepcopy(model).eval()(torch.from_numpy(x)).numpy()


def test_printed_result_is_a_summary_of_a_few_lines(made):
    text = str(made)
    assert len(text.splitlines()) <= 10
    assert text == repr(made)
    assert max(map(len, text.splitlines())) < 200
    for part in ("tiny_resnet on pixel6", f"{made.plan.run.makespan_ms:.2f} ms", f"recommended: {made.plan.recommended}", "not saved"):
        assert part in text


@pytest.mark.representatives(1)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_saved_bundle_computes_what_the_trained_network_computes(made, tmp_path, mode):
    untrained = copy.deepcopy(made.model)
    next(made.model.parameters()).requires_grad_(False)
    train(made.model)
    made.model.train(mode == "train")
    before, state = snapshot.of_module(made.model), snapshot.of_random_state()
    folder = made.save(tmp_path / "b")
    assert snapshot.of_module(made.model) == before
    assert snapshot.of_random_state() == state
    x = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    want = expected(made.model, x)
    slack = 1e-4 * np.abs(want).max()
    assert np.abs(onnx_runtime.output(folder / "model.onnx", x) - want).max() <= slack
    with Session(folder) as session:
        assert np.abs(session(x) - want).max() <= slack
    assert np.abs(expected(untrained, x) - want).max() > 100 * slack


@pytest.mark.slow
def test_bundle_of_a_trained_network_says_so_and_one_of_a_network_as_built_does_not(made, tmp_path):
    made.save(tmp_path / "built")
    assert load_bundle(tmp_path / "built").manifest.weights.source == "random"
    assert UNKNOWN_ACCURACY in made.warnings
    train(made.model, steps=1)
    made.save(tmp_path / "trained")
    weights = load_bundle(tmp_path / "trained").manifest.weights
    assert weights.source == "trained"
    assert "built from random weights" in weights.detail
    assert UNKNOWN_ACCURACY not in made.warnings


def test_controls_that_were_left_out_before_can_be_saved(tmp_path):
    result = branch("tiny_resnet", "pixel6", config=LOOSE, weights="none", controls=False)
    assert result.sequential is None
    state = snapshot.of_random_state()
    result.save(tmp_path / "b")
    assert snapshot.of_random_state() == state
    assert set(result.manifest.controls) == {"original", "sequential_same_macs"}
    result.save(tmp_path / "c", controls=False)
    assert result.manifest.controls == {}


def test_plan_of_a_dry_run_is_not_saved(tmp_path):
    result = branch("tiny_resnet", "pixel6", config=LOOSE, weights="none", dry_run=True)
    with pytest.raises(UsageError, match="there is no network to save: this is the plan of a dry run"):
        result.save(tmp_path / "b")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_network_on_a_gpu_is_saved_and_stays_there(made, tmp_path):
    made.model.cuda().half()
    before = torch.cuda.get_rng_state()
    made.save(tmp_path / "b")
    assert {(p.device.type, p.dtype) for p in made.model.parameters()} == {("cuda", torch.float16)}
    assert torch.equal(torch.cuda.get_rng_state(), before)
    x = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    want = expected(made.model.cpu().float(), x)
    assert np.abs(onnx_runtime.output(tmp_path / "b/model.onnx", x) - want).max() <= 1e-4 * np.abs(want).max()


@pytest.fixture
def branched_and_graph(captured):
    """A tiny network in two branches, fresh for every test, and the original's graph."""
    original = captured("tiny_resnet")
    return build(original, cpu_and("gpu", original.graph, "project")), original.graph


def first_of(model, kind):
    """Name and module of the first layer of a kind."""
    return next((name, part) for name, part in model.named_modules() if isinstance(part, kind))


def swap(model, kind, new):
    """Put another layer in the place of the first of a kind; its name."""
    name, _ = first_of(model, kind)
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new)
    return name


def test_network_is_copied_and_left_as_it_was(branched_and_graph):
    model, graph = branched_and_graph
    model.train().double()
    before, state = snapshot.of_module(model), snapshot.of_random_state()
    copied = as_it_is(model, graph)
    assert snapshot.of_module(model) == before
    assert snapshot.of_random_state() == state
    assert not copied.training
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(copied(x), model.eval()(x.double()).float(), atol=1e-5)


def test_layer_of_another_kind_is_refused_by_name(branched_and_graph):
    model, graph = branched_and_graph
    name = swap(model, nn.ReLU, nn.GELU())
    with pytest.raises(StretchError, match=rf"`{name}` is GELU, it was ReLU"):
        as_it_is(model, graph)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weight_that_is_not_finite_is_named(branched_and_graph, value):
    model, graph = branched_and_graph
    name, conv = first_of(model, nn.Conv2d)
    with torch.no_grad():
        conv.weight[0, 0, 0, 0] = value
    with pytest.raises(StretchError, match=rf"`{name}.weight` is not finite"):
        as_it_is(model, graph)


def test_fingerprint_changes_with_any_weight_or_statistic_and_back(branched_and_graph):
    model, _ = branched_and_graph
    built = fingerprint(model)
    seen = {built}
    for _, kind, key in [
        (0, nn.Conv2d, "weight"),
        (1, nn.BatchNorm2d, "running_mean"),
        (2, nn.BatchNorm2d, "bias"),
        (3, nn.Linear, "bias"),
    ]:
        tensor = getattr(first_of(model, kind)[1], key).data.view(-1)
        before = tensor[-1].clone()
        tensor[-1] += 1e-3
        seen.add(fingerprint(model))
        tensor[-1] = before
    assert len(seen) == 5
    assert fingerprint(model) == built


@pytest.fixture(scope="module")
def planned_only():
    """A plan and a network, nothing written."""
    return branch("tiny_resnet", "pixel6", config=PlanConfig(alpha=1000.0, beta=1000.0, macs=(0.5, 2.0), segment_macs=0.1), weights="none")


def test_answer_has_the_plans_figures_and_its_warnings_after_its_own(planned_only):
    answer, planned = planned_only.answer(), planned_only.plan.answer()
    assert answer.predicted == planned.predicted
    assert answer.segments == planned.segments
    assert len(answer.warnings) == len(planned_only.warnings) + len(planned.warnings) > 0
    assert answer.warnings[len(planned_only.warnings) :] == planned.warnings
