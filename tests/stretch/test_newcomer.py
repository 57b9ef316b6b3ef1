"""Workflows of a new user, from the user's files to running branches, with only installed commands."""

import re
import shutil

import pytest

from tests.contracts.repository import ROOT
from tests.stretch.newcomer import BIN, User, new_user, uv

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(not all((BIN / name).is_file() for name in ("stretch", "uv")), reason="`stretch` or `uv` is not installed"),
]

QUICK = ("--repeat", 2, "--warmup", 0)


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    return new_user(tmp_path_factory.mktemp("newcomer"))


@pytest.fixture(scope="module")
def branched(user):
    """The user's model in branches for a CPU and a DSP, calibrated with the user's pictures."""
    # By this phone's profile, transfers take much of the time of a small network, and the CPU is slow compared with the DSP.
    arguments = ("branch", "mymodel.py:make", "--device", "mi9", "--processors", "cpu,dsp", "--alpha", 100, "--beta", 5)
    arguments += ("--input", "3x128x128", "--images", "pictures/train")
    assert "--trust-code" in user.ask(*arguments, code=2)["hint"]
    return user.stretch(*arguments, "--trust-code", "--out", "own")


def check_run(data, tolerance):
    assert data["median_ms"] > 0
    assert data["check"]["error"] <= data["check"]["tolerance"]
    assert data["check"]["stored"]
    assert data["max_error"] <= tolerance
    assert 0.97 <= data["macs_ratio"] <= 1.03


def check_share(share, images, lowest):
    assert lowest <= share["value"] <= 1
    assert 0 <= share["low"] <= share["value"] <= share["high"] <= 1
    assert share["images"] == images


def test_users_model_becomes_branches_and_then_int8_that_agree_with_it(user, branched):
    check = user.ask(*branched.command("Next:"), *QUICK)["check"]
    assert check["error"] <= check["tolerance"]
    check_run(user.ask("run", "own", *QUICK), 1e-4)
    exported = user.ask("export", "own", "--precision", "cpu=fp32,dsp=int8", "--images", "pictures/train", "--out", "own_int8")
    assert {entry["precision"] for entry in exported["subgraphs"] if entry["processor"] == "dsp"} == {"int8"}
    assert {entry["precision"] for entry in exported["subgraphs"] if entry["processor"] == "cpu"} == {"fp32"}
    assert min(entry["cosine"] for entry in exported["subgraphs"] if entry["precision"] == "int8") >= 0.99
    # the folders have three of the network's five classes: the hint says how to name them
    assert "--classes FILE" in user.ask("evaluate", "own_int8", "--images", "pictures/val", code=1)["hint"]
    evaluated = user.ask("evaluate", "own_int8", "--images", "pictures/val", "--classes", "classes.txt")
    assert (evaluated["images"]["labels"], evaluated["precisions"]) == ("folders", ["fp32", "int8"])
    read = evaluated["preprocessing"]
    assert (read["mean"], read["std"], read["crop"], read["interpolation"]) == ([0.5] * 3, [0.25] * 3, 1.0, "bicubic")
    check_share(evaluated["top1"], 24, 0)
    check_share(evaluated["original"]["top1"], 24, 0)
    # the original nearly always answers the same class, so only the error is given and no agreement
    assert evaluated["agreement"] is None
    assert 1 <= evaluated["original_classes"] <= 3
    assert 0 < evaluated["error"] < 0.3
    check_run(user.ask("run", "own_int8", *QUICK), 0.3)
    explained = user.ask("explain", "own_int8")
    ran = {entry["name"] for entry in explained["subgraphs"]}
    assert ran == {entry["name"] for entry in exported["subgraphs"]}
    assert {op["subgraph"] for op in explained["ops"]} >= ran
    assert user.ask("verify", "own_int8")["ok"]


def test_training_on_users_pictures_gives_a_bundle_that_classifies_them(user):
    assert "--trust-code" in user.ask("train", "mine.toml", code=2)["hint"]
    trained = user.stretch("train", "mine.toml", "--trust-code")
    accuracy = float(re.search(r"accuracy ([\d.]+)%, best", trained.out)[1]) / 100
    assert accuracy > 0.5  # a random guess has one third

    extracted = user.stretch(*trained.command("take it out with:"), "--out", "taken")
    run_it = extracted.command("Next:")
    check_run(user.ask(*run_it, *QUICK), 1e-3)
    evaluated = user.ask("evaluate", "taken/bundle", "--images", "pictures/val")
    assert evaluated["images"]["classes"] == 3
    check_share(evaluated["top1"], 24, accuracy - 0.05)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The program in a new environment with the built wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    offline = ("--quiet", "--offline", "--wheel", "--no-build-isolation", "--python", BIN / "python")
    uv("build", *offline, "--out-dir", folder / "dist", ROOT, cwd=ROOT)
    uv("venv", "--quiet", "--python", BIN / "python", folder / "venv", cwd=folder)
    [wheel] = (folder / "dist").glob("*.whl")
    uv("pip", "install", "--quiet", "--offline", "--python", folder / "venv" / "bin" / "python", wheel, cwd=folder)
    return folder / "venv" / "bin" / "stretch"


def test_wheel_without_torch_runs_bundles_and_names_missing_packages(user, branched, program, tmp_path):
    shutil.copytree(user.home / "own", tmp_path / "own")
    base = User(tmp_path, program)
    installed = base.ask("list", "env")
    assert all(str(program.parents[1]) in place for place in installed["imported_from"].values())
    assert installed["packages"]["torch"] is None
    assert {item["id"] for item in base.ask("list", "devices")["items"]} >= {"mi9", "pixel6"}
    assert base.ask("verify", "own")["ok"]
    check_run(base.ask("run", "own", *QUICK), 1e-4)
    assert base.ask("explain", "own")["subgraphs"]

    # pictures need Pillow, which the hint installs
    arguments = ("evaluate", "own", "--images", user.home / "pictures" / "val", "--no-labels")
    follow(base.ask(*arguments, code=5)["hint"], program)
    # the untrained original nearly always answers the same class: the error is given and no agreement
    evaluated = base.ask(*arguments)
    assert evaluated["agreement"] is None
    assert 0 < evaluated["error"] < 0.3

    arguments = ("branch", "tiny_resnet", "--device", "pixel6", "--weights", "none", "--alpha", 100, "--out", "tiny")
    follow(base.ask(*arguments, code=5)["hint"], program)
    assert base.ask(*arguments)["checks"]["max_error"] < 1e-4
    check_run(base.ask("run", "tiny", *QUICK), 1e-4)


def follow(hint, program):
    """Run the installation that a hint about a missing package states, from the checkout."""
    [line] = re.findall(r"`(pip install [^`]*)`", hint)
    requirements = [word.strip('"') for word in line.split()[2:]]
    uv("pip", "install", "--quiet", "--offline", "--python", program.parent / "python", *requirements, cwd=ROOT)
