"""`stretch search`: a front, its files, and what is refused."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.predictors.specified import kept
from tests.stretch.cli.commands import call, succeed

pytestmark = pytest.mark.torch

TINY = ("search", "tiny_resnet", "--device", kept("pixel6"), "--processors", "cpu,gpu", "--alpha", 5, "--beta", 5)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    rng = np.random.default_rng(0)
    some = rng.standard_normal((32, 3, 32, 32)) * rng.uniform(0.2, 20, (32, 1, 1, 1)) + rng.standard_normal((32, 3, 1, 1)) * 5
    folder = tmp_path_factory.mktemp("images")
    np.save(folder / "some.npy", some.astype(np.float32))
    return folder


def test_without_images_macs_are_weighed_and_it_is_said_that_agreement_is_not_known(capsys):
    result = succeed(capsys, *TINY, "--set", "macs=0.7:1.1", "--top", 4, "--json")
    answer = result.data
    assert answer["pareto"] == ["latency", "macs"]
    assert 1 <= len(answer["designs"]) <= 4
    assert all(row["accuracy"] is None for row in answer["designs"])
    assert any("is not known" in warning for warning in answer["warnings"])
    assert "is not known" in result.err


def test_best_design_in_the_objective_and_others_that_differ_are_told_with_their_values(capsys):
    answer = succeed(capsys, *TINY, "--objective", "energy", "--within", 1.5, "--top", 4, "--json").data
    assert (answer["pareto"], answer["objective"], answer["within"], answer["optimal"], answer["gap"]) == ([], "energy", 1.5, True, 0.0)
    values = [row["value"] for row in answer["designs"]]
    assert values == [pytest.approx(row["energy_mj"]) for row in answer["designs"]]
    assert all(values[0] <= value <= 1.5 * values[0] for value in values)
    assert answer["seconds"]["search"] > 0
    table = call(capsys, *TINY, "--objective", "energy", "--top", 2).out
    assert "yes (proved to be the best)" in table


@pytest.mark.slow
def test_front_by_images_is_saved_as_designs_that_branch_takes_and_a_sensitivity_that_is_read_again(capsys, images, tmp_path):
    out = tmp_path / "front"
    words = (*TINY, "--kinds", "stretch,rows", "--weights", "none")
    answer = succeed(
        capsys, *words, "--images", images, "--set", "budget_minutes=0.05", "--out", out, "--plot", tmp_path / "front.svg", "--json"
    ).data
    assert answer["pareto"] == ["latency", "agreement"]
    assert answer["designs"][0]["accuracy"]["agreement"] == 1
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
    again = json.loads(call(capsys, *words, "--set", f"accuracy={answer['sensitivity_file']}", "--json").out)
    assert [row["predicted_ms"] for row in again["designs"]] == pytest.approx([row["predicted_ms"] for row in answer["designs"]])


PAIR = (*TINY, "--with", "tiny_mobilenet")
PAIR_KEYS = (
    "device processors goal designs makespan_ms pairs_per_second sequential_ms fixed_ms fixed_per_second fixed speedup_over_sequential "
    "speedup_over_fixed candidates seconds source warnings"
)


def test_pair_of_networks_is_no_worse_than_whole_networks_on_processors_of_their_own(capsys, tmp_path):
    answer = succeed(capsys, *PAIR, "--set", "pair_goal=throughput", "--top", 2, "--out", tmp_path / "pair", "--json").data
    assert set(PAIR_KEYS.split()) <= set(answer)
    assert [row["model"] for row in answer["designs"]] == ["tiny_resnet", "tiny_mobilenet"]
    assert answer["source"] == "simulated"
    assert answer["speedup_over_fixed"] >= 1
    assert answer["pairs_per_second"] >= answer["fixed_per_second"]
    for row in answer["designs"]:
        assert (row["file"] is None) == (row["design"] is None)
