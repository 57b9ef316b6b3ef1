import pytest

torch = pytest.importorskip("torch")

from predictors.devices import load_device  # noqa: E402 - torch may be missing
from predictors.errors import StretchError, UnknownNameError  # noqa: E402
from scheduler.bundle import load_bundle  # noqa: E402
from stretch.api import branch  # noqa: E402
from stretch.planning.config import PlanConfig  # noqa: E402
from stretch.planning.design import DesignDraft, design_to_toml  # noqa: E402

pytestmark = pytest.mark.torch
#: Tiny networks are too small for the phone's links, so any share of communication is allowed here.
LOOSE = PlanConfig(alpha=1000.0, beta=1000.0, macs=(0.5, 2.0), segment_macs=0.1)


@pytest.mark.parametrize(("device", "processors"), [("pixel6", ("cpu", "gpu")), ("mi9", ("cpu", "gpu", "dsp"))])
@pytest.mark.parametrize("model", ["tiny_resnet", "tiny_mobilenet", "tiny_regnet", "tiny_efficientnet"])
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


def test_design_of_a_bundle_builds_the_same_model_again(tmp_path):
    first = branch("tiny_resnet", "pixel6", config=LOOSE, weights="none")
    path = tmp_path / "design.toml"
    path.write_text(design_to_toml(first.plan.design))
    second = branch("tiny_resnet", "pixel6", design=path, weights="none")
    assert second.plan.design == first.plan.design
    assert second.plan.predicted()["makespan_ms"] == pytest.approx(first.plan.predicted()["makespan_ms"])
    for key, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[key])


def test_dry_run_plans_and_builds_nothing(tmp_path):
    result = branch("tiny_resnet", "pixel6", out=tmp_path / "b", config=LOOSE, weights="none", dry_run=True)
    assert result.model is None
    assert result.bundle is None
    assert list(tmp_path.iterdir()) == []


def test_module_may_be_given_instead_of_a_name():
    from stretch.models.tiny import tiny_resnet

    result = branch(tiny_resnet(), load_device("pixel6"), config=LOOSE, input_shape=(1, 3, 32, 32))
    assert result.weights_source == "given"
    x = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        assert result.model(x).shape == (2, 10)


def test_wrong_target_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").touch()
    phases = []
    with pytest.raises(StretchError, match="is no folder"):
        branch("tiny_resnet", "pixel6", out=tmp_path / "file", step=phases.append)
    assert phases == []


def test_design_with_a_processor_the_device_lacks_is_refused():
    import msgspec

    draft = msgspec.toml.decode('[[segments]]\nname="s1"\nbranches=[{processor="dsp"},{processor="cpu"}]', type=DesignDraft)
    with pytest.raises(UnknownNameError, match="unknown processor `dsp`"):
        branch("tiny_resnet", "pixel6", design=draft, weights="none")


def test_json_has_the_keys_of_the_contract():
    data = branch("tiny_resnet", "mi9", config=LOOSE, weights="none").to_json()
    assert data.keys() >= {
        *("model", "device", "calibrated", "macs", "params", "macs_ratio", "params_ratio", "n_meet", "segments", "design"),
        *("predicted", "recommended", "weights", "bundle", "checks", "warnings"),
    }
    assert data["predicted"].keys() >= {
        *(
            "makespan_ms",
            "best_single_ms",
            "best_single_processor",
            "speedup",
            "sequential_same_macs_ms",
            "whole_graph_ms",
            "operator_split_ms",
        ),
        *("ideal_split_ms", "ideal_fraction", "efficiency", "optimal", "gap", "source"),
    }
    for segment in data["segments"]:
        assert segment.keys() >= {"name", "start", "end", "shape", "depth", "branches"}
        for each in segment["branches"]:
            assert each.keys() >= {"processor", "depth", "width", "entry", "join", "macs", "predicted_ms"}


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


def test_folder_without_images_is_refused_and_no_bundle_is_left(tmp_path):
    (tmp_path / "images").mkdir()
    with pytest.raises(StretchError, match="calibration images"):
        branch("tiny_resnet", "pixel6", out=tmp_path / "b", config=LOOSE, weights="none", images=tmp_path / "images")
    assert not (tmp_path / "b").exists()
