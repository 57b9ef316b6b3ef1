import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from predictors.errors import InfeasibleError, StretchError, UnknownNameError, UsageError  # noqa: E402
from scheduler.bundle.load import load_bundle  # noqa: E402
from scheduler.bundle.preprocessing import Preprocessing  # noqa: E402
from scheduler.runtime.session import Session  # noqa: E402
from stretch.api import branch  # noqa: E402
from stretch.models.tiny import tiny_resnet  # noqa: E402
from stretch.planning.config import PlanConfig  # noqa: E402
from stretch.planning.design.branch_design import design_to_toml  # noqa: E402
from tests import onnx_runtime  # noqa: E402
from tests.stretch.api import snapshot  # noqa: E402

pytestmark = pytest.mark.torch
#: Tiny networks are too small for the phone's links, so any share of communication is allowed here.
LOOSE = PlanConfig(alpha=1000.0, beta=1000.0, macs=(0.5, 2.0), segment_macs=0.1)


@pytest.mark.parametrize(
    ("model", "device", "processors"), [("tiny_resnet", "mi9", ("cpu", "gpu", "dsp")), ("tiny_efficientnet", "pixel6", ("cpu", "gpu"))]
)
def test_model_becomes_a_bundle_for_the_device_s_processors(tmp_path, model, device, processors):
    result = branch(model, device, out=tmp_path / "b", config=LOOSE, weights="none")
    assert result.bundle == tmp_path / "b"
    bundle = load_bundle(tmp_path / "b", check_hashes=True)
    assert set(result.plan.design.processors) <= set(processors)
    assert result.plan.design.n_meet >= 1
    assert bundle.manifest.device == device
    assert bundle.manifest.weights.source == "random"
    assert bundle.manifest.checks["max_error"] <= 1e-4
    assert set(bundle.manifest.controls) == {"original", "sequential_same_macs"}


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
    """A network half in training, half frozen, with gradients, statistics of its own and a hook that looks."""
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
def test_module_and_random_numbers_are_left_as_they_were(make, tmp_path):
    module = make()
    before = state_of(module)
    result = branch(module, "pixel6", config=LOOSE, input_shape=(3, 32, 32), out=str(tmp_path / "b"))
    assert state_of(module) == before
    assert load_bundle(str(tmp_path / "b")).manifest.weights.source == "given"
    assert any("float" in warning for warning in result.warnings) == (next(module.parameters()).dtype != torch.float32)
    x = torch.randn(1, 3, 32, 32)
    want = copy.deepcopy(module).float().eval()(x)
    got = onnx_runtime.output(tmp_path / "b/controls/original.onnx", x.numpy())
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
def test_module_and_random_numbers_are_left_as_they_were_after_an_error(arguments, error):
    module = partly_frozen()
    before = state_of(module)
    with pytest.raises(error):
        branch(module, "pixel6", **({"input_shape": (3, 32, 32)} | arguments))
    assert state_of(module) == before


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"alpah": 0.3}, UnknownNameError, "did you mean `alpha`?"),
        ({"alpha": -1}, UsageError, "`alpha` is out of range"),
        ({"merge": "sometimes"}, UsageError, "choose from never, auto, always"),
        ({"alpha": 1e-6}, InfeasibleError, "`alpha="),
    ],
)
def test_option_that_cannot_be_is_refused_by_its_argument(options, error, words):
    with pytest.raises(error) as caught:
        branch("tiny_resnet", "pixel6", weights="none", dry_run=True, **options)
    assert words in f"{caught.value.message} {caught.value.hint}"
    assert "--" not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(("model", "says"), [(torch.nn.Linear, "not the class Linear"), (None, "not NoneType")])
def test_model_that_is_none_is_refused_in_one_sentence(model, says):
    with pytest.raises(UsageError, match=f"a model is a name or a torch.nn.Module, {says}"):
        branch(model, "pixel6")


def test_device_of_one_processor_is_refused_before_anything_is_loaded():
    phases = []
    with pytest.raises(UsageError, match="at least two processors") as caught:
        branch("no_such_network", "raspberrypi5", progress=phases.append)
    assert phases == []
    assert "`stretch predict MODEL --device raspberrypi5`" in caught.value.hint


@pytest.mark.slow
def test_images_calibrate_the_model_before_it_is_exported(tmp_path):
    import numpy as np

    (tmp_path / "images").mkdir()
    np.save(tmp_path / "images" / "some.npy", np.random.default_rng(0).standard_normal((40, 3, 32, 32)).astype(np.float32))
    plain = branch("tiny_resnet", "pixel6", config=LOOSE, weights="none")
    result = branch("tiny_resnet", "pixel6", out=tmp_path / "b", config=LOOSE, weights="none", images=tmp_path / "images", image_count=32)
    assert [e["segment"] for e in result.to_json()["calibration"]] == [s.name for s in result.plan.design.segments if not s.whole]
    assert all(e.after < e.before for e in result.calibration)
    assert any(not torch.equal(v, plain.model.state_dict()[k]) for k, v in result.model.state_dict().items() if "join_conv" in k)
    assert result.manifest.checks["max_error"] <= 1e-4


def test_refined_network_is_told_and_never_worse_on_images_held_back(tmp_path):
    import numpy as np

    (tmp_path / "images").mkdir()
    np.save(tmp_path / "images" / "some.npy", np.random.default_rng(0).standard_normal((40, 3, 32, 32)).astype(np.float32))
    words = []
    images = {"images": tmp_path / "images", "image_count": 32, "refine": 0.02}
    result = branch("tiny_resnet", "pixel6", out=tmp_path / "b", config=LOOSE, weights="none", progress=words.append, **images)
    assert result.refinement.after <= result.refinement.before
    assert result.to_json()["refinement"].keys() == {"before", "after", "images", "steps", "seconds"}
    assert result.to_json()["refinement"]["steps"] >= 1
    assert any(line.startswith("refine, ") for line in words)
    # the network is as it was built, not changed by its owner since
    assert result.manifest.weights.source == "random"
    assert not result.model.training


@pytest.mark.slow
def test_preprocessing_that_is_given_counts_instead_of_the_modules_own(tmp_path):
    module = tiny_resnet()
    module.preprocessing = {"mean": (0.1, 0.2, 0.3), "crop": 0.5}
    out = tmp_path / "bundle"
    result = branch(module, "pixel6", out=out, input_shape=(3, 32, 32), alpha=5.0, preprocessing={"std": (0.5, 0.25, 1), "size": 40})
    expected = Preprocessing((0.1, 0.2, 0.3), (0.5, 0.25, 1), 0.5, size=40)
    assert result.preprocessing == load_bundle(out).manifest.model.preprocessing == expected
    with pytest.raises(UsageError, match="resizes pictures to 20, the model reads 32×32"):
        branch(module, "pixel6", input_shape=(3, 32, 32), alpha=5.0, dry_run=True, preprocessing={"size": 20})


def test_network_that_cannot_be_traced_is_planned_and_built_with_a_word_on_what_is_not_scaled():
    from tests.stretch.capture.patterns import Attention, network

    module = network(Attention)
    result = branch(module, "mi9", input_shape=(1, 3, 8, 8), processors=("cpu", "gpu"))
    assert any("captured by torch.export" in warning for warning in result.warnings)
    assert any("torch's own" in warning for warning in result.plan.warnings)
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert result.plan.exact
    with torch.no_grad():
        assert torch.allclose(result.model(x), module(x), atol=1e-5)


def test_network_that_gives_tokens_is_written_and_run_equal(tmp_path):
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2), torch.nn.Flatten(2), torch.nn.Softmax(2), torch.nn.Linear(49, 5)).eval()
    result = branch(module, "mi9", out=tmp_path / "bundle", input_shape=(1, 3, 16, 16), processors=("cpu", "gpu"), controls=False)
    assert any(tensor.layout == "plain" for tensor in load_bundle(tmp_path / "bundle").manifest.tensors)
    x = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with Session(tmp_path / "bundle", {"cpu": "cpu", "gpu": "cpu"}) as session, torch.no_grad():
        assert np.allclose(session.run(x.numpy()), module(x).numpy(), atol=1e-5)
    assert result.plan.design.segments
