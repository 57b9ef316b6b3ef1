import copy

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from predictors.errors import InfeasibleError, StretchError, UnknownNameError, UsageError
from scheduler.bundle.load import load_bundle
from scheduler.bundle.preprocessing import Preprocessing
from scheduler.checks.verify import verify_bundle
from scheduler.runtime.session import Session
from stretch.api import branch
from stretch.api.main_job import UNKNOWN_ACCURACY
from stretch.evaluation.sensitivity.source import sensitivity_of
from stretch.network.models.tiny import BasicBlock, SmallResNet, tiny_resnet
from stretch.planning.config import PlanConfig
from stretch.planning.cost.accuracy import save_accuracy
from stretch.planning.design.branch_design import design_to_toml
from stretch.stages.arguments import materialize
from stretch.stages.build import divide_images
from stretch.stages.network import read_network
from stretch.transform import build
from tests import onnx_runtime
from tests.predictors.specified import kept, specified
from tests.stretch.api import snapshot
from tests.stretch.designs import cpu_and
from tests.stretch.pictures import folder_of

#: Tiny networks are too small for the phone's links, so these tests allow any share of communication.
LOOSE = PlanConfig(alpha=1000.0, beta=1000.0, macs=(0.5, 2.0), segment_macs=0.1)


@pytest.mark.slow
def test_design_of_a_bundle_builds_the_same_model_again(tmp_path):
    first = branch("tiny_resnet", "pixel6", config=LOOSE, weights="none")
    path = tmp_path / "design.toml"
    path.write_text(design_to_toml(first.plan.design))
    second = branch("tiny_resnet", "pixel6", design=path, weights="none")
    assert second.plan.design == first.plan.design
    assert second.plan.predicted.makespan_ms == pytest.approx(first.plan.predicted.makespan_ms)
    for key, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[key])


def state_of(module):
    return snapshot.of_module(module), snapshot.of_random_state()


def partly_frozen():
    """A network partly in training mode and partly frozen, with gradients, its own statistics and a hook without effect."""
    module = tiny_resnet().train()
    module(torch.randn(4, 3, 32, 32)).sum().backward()
    for i, part in enumerate(module.modules()):
        part.training = i % 2 == 0
    for i, parameter in enumerate(module.parameters()):
        parameter.requires_grad_(i % 3 == 0)
    module.register_forward_hook(lambda part, inputs, output: None)
    return module


MODULES = {
    "training": lambda: tiny_resnet().train(),
    "evaluation": lambda: tiny_resnet().eval(),
    "partly frozen": partly_frozen,
    "double": lambda: tiny_resnet().double(),
    "half": lambda: tiny_resnet().half().train(),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES.keys())
def test_branch_does_not_change_the_module_or_the_random_state(make, tmp_path):
    module = make()
    before = state_of(module)
    result = branch(module, "pixel6", config=LOOSE, input_shape=(3, 32, 32), out=str(tmp_path / "b"))
    assert (state_of(module), load_bundle(str(tmp_path / "b")).manifest.weights.source) == (before, "given")
    assert any("float" in warning for warning in result.warnings) == (next(module.parameters()).dtype != torch.float32)
    x = torch.randn(1, 3, 32, 32)
    want = copy.deepcopy(module).float().eval()(x)
    got = onnx_runtime.output(tmp_path / "b/original.onnx", x.numpy())
    assert abs(got - want.detach().numpy()).max() <= 1e-4 * want.abs().max().item()


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"config": PlanConfig(alpha=1e-6)}, InfeasibleError),
        ({"config": LOOSE, "input_shape": (5, 32, 32)}, UsageError),
        ({"config": LOOSE, "images": "nowhere"}, StretchError),
    ],
)
def test_failed_branch_does_not_change_the_module_or_the_random_state(arguments, error):
    module = partly_frozen()
    before = state_of(module)
    with pytest.raises(error):
        branch(module, "pixel6", **({"input_shape": (3, 32, 32)} | arguments))
    assert state_of(module) == before


@pytest.mark.parametrize(
    ("model", "options", "error", "sentence"),
    [
        ("tiny_resnet", {"alpah": 0.3}, UnknownNameError, "did you mean `alpha`?"),
        ("tiny_resnet", {"alpha": -1}, UsageError, "`alpha` is out of range"),
        ("tiny_resnet", {"merge": "sometimes"}, UsageError, "choose from never, auto, always"),
        ("tiny_resnet", {"alpha": 1e-6, "dry_run": True}, InfeasibleError, "`alpha="),
        (torch.nn.Linear, {}, UsageError, "not the class Linear"),
        (None, {}, UsageError, "not NoneType"),
        # refused before the network is loaded
        ("no_such_network", {"device": "raspberrypi5"}, UsageError, "at least two processors"),
        ("no_such_network", {"min_agreement": 0.9}, UsageError, "measured on images, and there are none"),
        ("no_such_network", {"min_agreement": 1.2, "images": "there"}, UsageError, "out of range"),
        ("no_such_network", {"min_agreement": 0.9, "images": "there", "dry_run": True}, UsageError, "dry run"),
        ("no_such_network", {"repair": True, "images": "there"}, UsageError, "nothing to repair"),
        ("no_such_network", {"run_images": -1, "images": "there"}, UsageError, "no number of images"),
        ("no_such_network", {"mapping": {"gpu": "cpu"}}, UsageError, "there are no images"),
        (
            "no_such_network",
            {"min_agreement": 0.9, "images": "there", "repair": True, "design": "there"},
            UsageError,
            "a design that is given is not changed",
        ),
    ],
)
def test_invalid_request_is_refused_with_the_name_of_its_argument(images, tmp_path, model, options, error, sentence):
    existing, phases = {"images": images, "design": tmp_path / "same.toml"}, []
    existing["design"].write_text('version = 1\n\n[[segments]]\nname = "s1"\nbranches = [{ processor = "gpu" }]\n')
    arguments = {key: existing[key] if value == "there" else value for key, value in options.items()}
    with pytest.raises(error) as caught:
        branch(model, arguments.pop("device", "pixel6"), weights="none", progress=phases.append, **arguments)
    message = f"{caught.value.message} {caught.value.hint}"
    assert sentence in message
    assert model != "no_such_network" or phases == []
    assert ("--" in message) == ("device" in options)


@pytest.mark.slow
def test_given_and_synthetic_images_calibrate_the_network_before_export(images, tmp_path):
    plain = branch("tiny_resnet", "pixel6", config=LOOSE, weights="none")
    result = branch("tiny_resnet", "pixel6", out=tmp_path / "b", config=LOOSE, weights="none", images=images, image_count=32, synthetic=6)
    assert result.manifest.weights.detail.endswith("fitted also to 6 images made from it")
    assert [e["segment"] for e in result.to_json()["calibration"]] == [s.name for s in result.plan.design.segments if not s.whole]
    assert all(e.after < e.before for e in result.calibration)
    assert any(not torch.equal(v, plain.model.state_dict()[k]) for k, v in result.model.state_dict().items() if "join_conv" in k)
    assert result.manifest.checks["max_error"] <= 1e-4


@pytest.mark.slow
def test_refinement_is_reported_and_never_worse_on_held_back_images(images, tmp_path):
    phases = []
    request = {"images": images, "image_count": 32, "refine": 0.02, "progress": phases.append}
    result = branch("tiny_resnet", "pixel6", out=tmp_path / "b", config=LOOSE, weights="none", **request)
    assert result.refinement.after <= result.refinement.before
    assert result.to_json()["refinement"].keys() == {"before", "after", "images", "steps", "seconds", "rounded_before", "rounded_after"}
    assert result.to_json()["refinement"]["steps"] >= 1
    assert any(line.startswith("refine, ") for line in phases)
    # the owner has not changed the network since it was built
    assert result.manifest.weights.source == "random"
    assert not result.model.training


def test_block_without_effect_is_dropped_from_all_branches_and_the_bundle_states_it(images, tmp_path):
    torch.manual_seed(0)
    module = SmallResNet(BasicBlock, (16, 16), 4).eval()
    nn.init.zeros_(module.stages[1][1].bn2.weight)
    request = {"input_shape": (3, 32, 32), "merge": "always", "macs": (0.6, 0.9), "balance": 0.01, "min_depth": 0.2, "controls": False}
    options = {"config": LOOSE, "images": images, "image_count": 16, "run_images": 0, "processors": ("cpu", "gpu")}
    result = branch(module, kept("pixel6"), out=tmp_path / "b", **options, **request)
    (part,) = (part for part in result.plan.design.segments if not part.whole)
    # an even choice would first drop the blocks at the ends of both stages
    assert all(5 in b.dropped for b in part.branches)
    assert any({6, 7} - set(b.dropped) for b in part.branches)
    assert len([w for w in result.to_json()["warnings"] if "were chosen by what the network loses on images without each" in w]) == 1
    bundle = load_bundle(tmp_path / "b", check_hashes=True)
    stated = {s["name"]: [b.get("dropped", ()) for b in s["branches"]] for s in bundle.manifest.design["segments"]}
    assert [tuple(blocks) for blocks in stated[part.name]] == [b.dropped for b in part.branches]
    assert verify_bundle(tmp_path / "b").ok
    x = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    with Session(tmp_path / "b") as session:
        assert np.abs(session(x) - expected(result.model, x)).max() <= 1e-4 * np.abs(expected(result.model, x)).max()


@pytest.mark.slow
def test_given_preprocessing_overrides_the_preprocessing_of_the_module(tmp_path):
    module = tiny_resnet()
    module.preprocessing = {"mean": (0.1, 0.2, 0.3), "crop": 0.5}
    out = tmp_path / "bundle"
    result = branch(module, "pixel6", out=out, input_shape=(3, 32, 32), alpha=100.0, preprocessing={"std": (0.5, 0.25, 1), "size": 40})
    expected = Preprocessing((0.1, 0.2, 0.3), (0.5, 0.25, 1), 0.5, size=40)
    assert result.preprocessing == load_bundle(out).manifest.model.preprocessing == expected
    with pytest.raises(UsageError, match="resizes pictures to 20, the model reads 32×32"):
        branch(module, "pixel6", input_shape=(3, 32, 32), alpha=100.0, dry_run=True, preprocessing={"size": 20})


def test_network_that_cannot_be_traced_is_built_with_warnings_about_unknown_operators():
    from tests.stretch.network.capture.patterns import Attention, network

    module = network(Attention)
    result = branch(module, "mi9", input_shape=(1, 3, 8, 8), processors=("cpu", "gpu"))
    assert any("captured by torch.export" in warning for warning in result.warnings)
    assert any("are unknown and not split" in warning for warning in result.plan.warnings)
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert result.plan.exact
    with torch.no_grad():
        assert torch.allclose(result.model(x), module(x), atol=1e-5)


@pytest.fixture
def built():
    return branch("tiny_resnet", "pixel6", config=LOOSE, weights="none")


def test_printed_result_and_json_have_the_figures_and_warnings_of_the_plan(built):
    text = str(built)
    assert len(text.splitlines()) <= 10
    assert text == repr(built)
    assert max(map(len, text.splitlines())) < 200
    for part in ("tiny_resnet on pixel6", f"{built.plan.run.makespan_ms:.2f} ms", f"recommended: {built.plan.recommended}", "not saved"):
        assert part in text
    answer, planned = built.to_json(), built.plan.to_json()
    assert (answer["predicted"], answer["segments"]) == (planned["predicted"], planned["segments"])
    assert answer["warnings"] == [*built.warnings, *planned["warnings"]] != []


def train(model, steps=3):
    """Take a few real steps, which change every weight and statistic that is not frozen."""
    torch.manual_seed(0)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    model.train()
    for _ in range(steps):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 3, 32, 32)), torch.randint(10, (8,)))
        loss.backward()
        optimiser.step()


def expected(model, x):
    """Outputs of a copy of the network in evaluation mode."""
    with torch.inference_mode():
        return copy.deepcopy(model).eval()(torch.from_numpy(x)).numpy()


@pytest.mark.representatives(1)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_saved_bundle_computes_the_same_as_the_trained_network(built, tmp_path, mode):
    untrained = copy.deepcopy(built.model)
    next(built.model.parameters()).requires_grad_(False)
    train(built.model)
    built.model.train(mode == "train")
    before, state = snapshot.of_module(built.model), snapshot.of_random_state()
    folder = built.save(tmp_path / "b")
    assert (snapshot.of_module(built.model), snapshot.of_random_state()) == (before, state)
    x = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    want = expected(built.model, x)
    tolerance = 1e-4 * np.abs(want).max()
    assert np.abs(onnx_runtime.output(folder / "model.onnx", x) - want).max() <= tolerance
    with Session(folder) as session:
        assert np.abs(session(x) - want).max() <= tolerance
    assert np.abs(expected(untrained, x) - want).max() > 100 * tolerance


@pytest.mark.slow
def test_bundle_states_whether_its_network_was_trained(built, tmp_path):
    built.save(tmp_path / "built")
    assert load_bundle(tmp_path / "built").manifest.weights.source == "random"
    assert UNKNOWN_ACCURACY in built.warnings
    train(built.model, steps=1)
    built.save(tmp_path / "trained")
    weights = load_bundle(tmp_path / "trained").manifest.weights
    assert weights.source == "trained"
    assert "built from random weights" in weights.detail
    assert UNKNOWN_ACCURACY not in built.warnings


def test_controls_omitted_by_branch_can_be_saved_later(tmp_path):
    result = branch("tiny_resnet", "pixel6", config=LOOSE, weights="none", controls=False)
    assert result.sequential is None
    state = snapshot.of_random_state()
    result.save(tmp_path / "b")
    assert (snapshot.of_random_state(), set(result.manifest.controls)) == (state, {"original", "sequential_same_macs"})
    result.save(tmp_path / "c", controls=False)
    assert result.manifest.controls == {}


def test_plan_of_a_dry_run_is_not_saved(tmp_path):
    result = branch("tiny_resnet", "pixel6", config=LOOSE, weights="none", dry_run=True)
    with pytest.raises(UsageError, match="there is no network to save: this is the plan of a dry run"):
        result.save(tmp_path / "b")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_network_on_a_gpu_is_saved_and_stays_on_the_gpu(built, tmp_path):
    built.model.cuda().half()
    before = torch.cuda.get_rng_state()
    built.save(tmp_path / "b")
    assert {(p.device.type, p.dtype) for p in built.model.parameters()} == {("cuda", torch.float16)}
    assert torch.equal(torch.cuda.get_rng_state(), before)
    x = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    want = expected(built.model.cpu().float(), x)
    assert np.abs(onnx_runtime.output(tmp_path / "b/model.onnx", x) - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_weight_and_replaced_layer_are_named(captured, value):
    graph = captured("tiny_resnet").graph
    model = build(captured("tiny_resnet"), cpu_and("gpu", graph, "project"))
    conv, relu = (next(name for name, part in model.named_modules() if isinstance(part, kind)) for kind in (nn.Conv2d, nn.ReLU))
    with torch.no_grad():
        model.get_submodule(conv).weight[0, 0, 0, 0] = value
    with pytest.raises(StretchError, match=rf"`{conv}.weight` is not finite"):
        materialize(model, graph)
    model.set_submodule(relu, nn.GELU())
    with pytest.raises(StretchError, match=rf"`{relu}` is GELU, it was ReLU"):
        materialize(model, graph)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("images"), 96)


@pytest.fixture(scope="module")
def measured(images):
    """Sensitivity of a tiny network, measured segment by segment."""
    network = read_network("tiny_resnet", weights="none")
    result = divide_images(images, network.captured, 24)
    return sensitivity_of(network.captured, specified("pixel6"), LOOSE, result, 4)


@pytest.mark.slow
def test_network_with_lower_agreement_than_required_is_refused_and_nothing_is_written(images, tmp_path, measured):
    optimistic = tmp_path / "hopeful.json"
    save_accuracy(optimistic, replace(measured, curve=(50.0, measured.curve[1])))
    request = {"config": LOOSE, "weights": "none", "images": images, "image_count": 48, "accuracy": str(optimistic)}
    with pytest.raises(InfeasibleError, match="sees the original's class in") as caught:
        branch("tiny_resnet", specified("pixel6"), out=tmp_path / "b", min_agreement=1.0 - 1e-6, **request)
    assert caught.value.exit_code == 4
    assert "repair" in caught.value.hint
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_only_if_faster_neither_builds_nor_compares_branches_that_are_not_recommended(images, tmp_path, measured):
    save_accuracy(tmp_path / "sensitivity.json", measured)
    request = {"kinds": ("rows",), "processors": ("cpu", "gpu"), "images": images, "accuracy": str(tmp_path / "sensitivity.json")}
    result = branch("tiny_resnet", specified("mi9"), out=tmp_path / "b", weights="none", min_agreement=0.5, only_if_faster=True, **request)
    assert (result.withheld, result.model, result.bundle, (tmp_path / "b").exists()) == (True, None, None, False)
    with pytest.raises(UsageError, match="no network to save: branches are not recommended") as caught:
        result.save(tmp_path / "b")
    assert "only_if_faster" in caught.value.hint


@pytest.mark.slow
def test_repaired_network_agrees_and_its_bundle_states_the_agreement_unless_it_is_changed(images, tmp_path):
    request = {"config": LOOSE, "weights": "none", "images": images, "image_count": 48}
    before = branch("tiny_resnet", specified("pixel6"), **request)
    result = branch("tiny_resnet", specified("pixel6"), out=tmp_path / "b", min_agreement=1.0, repair=True, measured_blocks=4, **request)
    assert before.agreement.value < result.agreement.value == result.to_json()["agreement"]["value"] == 1.0
    keep = result.plan.config.keep
    assert keep or result.plan.exact
    assert all(s.kind != "stretch" for s in result.plan.run.segments if s.segment.name in keep)
    assert load_bundle(tmp_path / "b").manifest.agreement == result.agreement
    assert result.agreement.bundle.images == 48  # of 96 images, the images that calibration did not use
    with torch.no_grad():
        next(before.model.parameters()).add_(0.01)
    before.save(tmp_path / "c")
    assert before.agreement is load_bundle(tmp_path / "c").manifest.agreement is None
