import json

import msgspec
import pytest

pytest.importorskip("torch")

import stretch
from predictors.devices import load_device
from stretch.network.models.tiny import tiny_resnet
from tests.predictors.specified import kept
from tests.stretch.cli.commands import call, succeed
from tests.stretch.pictures import folder_of
from tests.stretch.train.recipes import network, supernet

TINY = ("search", "tiny_resnet", "--device", kept("pixel6"), "--processors", "cpu,gpu", "--alpha", 100, "--beta", 5)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("images"), 40)


def test_search_without_images_weighs_macs_and_warns_that_agreement_is_unknown(capsys):
    result = succeed(capsys, *TINY, "--set", "macs=0.7:1.1", "--top", 4, "--json")
    answer = result.data
    assert answer["pareto"] == ["latency", "macs"]
    assert 1 <= len(answer["designs"]) <= 4
    assert all(row["accuracy"] is None for row in answer["designs"])
    assert any("is not known" in warning for warning in answer["warnings"])
    assert "is not known" in result.err


def test_search_by_objective_lists_the_best_and_different_designs_with_their_values(capsys):
    answer = succeed(capsys, *TINY, "--objective", "energy", "--within", 1.5, "--top", 4, "--json").data
    assert (answer["pareto"], answer["objective"], answer["within"], answer["optimal"], answer["gap"]) == ([], "energy", 1.5, True, 0.0)
    values = [row["value"] for row in answer["designs"]]
    assert values == [pytest.approx(row["energy_mj"]) for row in answer["designs"]]
    assert all(values[0] <= value <= 1.5 * values[0] for value in values)
    assert answer["seconds"]["search"] > 0
    table = call(capsys, *TINY, "--objective", "energy", "--top", 2, "--details").out
    assert "yes (proved to be the best)" in table


@pytest.mark.slow
def test_front_by_images_is_saved_as_designs_for_branch_and_a_sensitivity_for_another_search(capsys, images, tmp_path):
    out = tmp_path / "front"
    args = (*TINY, "--kinds", "stretch,rows", "--weights", "none")
    settings = ("--set", "measured_blocks=4", "--set", "synthetic=4")
    answer = succeed(capsys, *args, "--images", images, *settings, "--out", out, "--plot", tmp_path / "front.svg", "--json").data
    assert (answer["pareto"], answer["designs"][0]["accuracy"]["agreement"]) == (["latency", "agreement"], 1)
    assert sorted(path.name for path in out.iterdir()) == [*(f"design_{row['name']}.toml" for row in answer["designs"]), "sensitivity.json"]
    assert "<svg" in (tmp_path / "front.svg").read_text()
    last = answer["designs"][-1]
    branched = call(
        capsys, "branch", "tiny_resnet", "--device", kept("pixel6"), "--weights", "none", "--design", last["file"],
        "--set", f"accuracy={out / 'sensitivity.json'}", "--dry-run", "--json",
    )  # fmt: skip
    planned = json.loads(branched.out)
    assert planned["predicted"]["makespan_ms"] == pytest.approx(last["predicted_ms"])
    assert planned["accuracy"]["agreement"] == pytest.approx(last["accuracy"]["agreement"])
    repeated = json.loads(call(capsys, *args, "--set", f"accuracy={answer['sensitivity_file']}", "--json").out)
    assert [row["predicted_ms"] for row in repeated["designs"]] == pytest.approx([row["predicted_ms"] for row in answer["designs"]])


PAIR_KEYS = (
    "device processors goal designs makespan_ms pairs_per_second sequential_ms fixed_ms fixed_per_second fixed speedup_over_sequential "
    "speedup_over_fixed candidates seconds source warnings"
)


def test_pair_of_networks_is_no_slower_than_each_network_whole_on_its_own_processor(capsys, tmp_path):
    args = ("--with", "tiny_mobilenet", "--set", "pair_goal=throughput", "--top", 2, "--out", tmp_path / "pair", "--json")
    answer = succeed(capsys, *TINY, *args).data
    assert set(PAIR_KEYS.split()) <= set(answer)
    assert ([row["model"] for row in answer["designs"]], answer["source"]) == (["tiny_resnet", "tiny_mobilenet"], "simulated")
    assert answer["speedup_over_fixed"] >= 1
    assert answer["pairs_per_second"] >= answer["fixed_per_second"]
    assert all((row["file"] is None) == (row["design"] is None) for row in answer["designs"])


@pytest.mark.slow
def test_python_function_and_command_give_the_same_advice_with_a_row_per_device(capsys):
    table = call(capsys, "advise", "tiny_resnet", "--device", "pixel*", "--details").out
    assert all(f"\n{name} " in table and f"\n{name}: " in table for name in ("pixel4", "pixel6"))
    args = ("advise", "tiny_resnet", "--device", "pixel*", "--precision", "fp16", "--json", "--quiet")
    printed = json.loads(call(capsys, *args).out)
    advice = stretch.advise("tiny_resnet", ["pixel4", load_device("pixel6")], precision="fp16")
    assert printed | json.loads(msgspec.json.encode(advice)) == printed
    module = stretch.advise(tiny_resnet(), "pixel4,pixel6", precision="fp16", input_shape=(3, 32, 32))
    assert repr(module).splitlines()[1:] == repr(advice).splitlines()[1:]
    assert [line.partition(":")[0] for line in repr(advice).splitlines()[1:]] == [answer["device"] for answer in printed["answers"]]


@pytest.mark.slow
@pytest.mark.parametrize("make", [network, supernet])
def test_recipe_to_weights_to_bundle_to_execution(capsys, tmp_path, make):
    run = tmp_path / "run"
    trained = succeed(capsys, "train", make(tmp_path), "--out", run, "--json", "--quiet", "--set", "keep.tensorboard=true")
    assert json.loads(trained.out)["run"] == str(run)
    assert list((run / "tensorboard").iterdir())
    assert "export the run first" in call(capsys, "export", run, "--as", "tflite", "--out", tmp_path / "lite").hint
    exported = succeed(capsys, "export", run, "--out", tmp_path / "out", "--json", "--quiet", "--no-controls")
    accuracy = json.loads(exported.out)["accuracy"]
    assert accuracy["supernet"] == accuracy["extracted"]
    succeed(capsys, "run", tmp_path / "out" / "bundle", "--repeat", 2, "--warmup", 0, "--json", "--quiet")


@pytest.mark.slow
def test_train_reports_the_change_and_the_command_that_runs_the_bundle(capsys, tiny_bundle, images, tmp_path):
    args = ("--images", images, "--image-count", 32, "--run-images", 2, "--steps", 2)
    result = succeed(capsys, "train", tiny_bundle, *args, "--out", tmp_path / "new")
    assert "2 steps in" in result.out
    assert "before, on 10 held-out images" in result.out
    assert result.out.rstrip().endswith(f"stretch run {tmp_path / 'new'}")
    assert call(capsys, "verify", tmp_path / "new").code == 0
