"""Measurements of this and other machines become profiles and fits, or are refused in one sentence."""

import json
import re
import shutil

import pytest

from predictors.devices import PROFILE_FOLDER, load_device
from predictors.measurements.networks import load_measurements
from predictors.predictor import LatencyPredictor
from tests.predictors.fitting.worlds import DEVICE, nothing_borrowed, write_world
from tests.predictors.measurements.test_tables import PROFILE
from tests.stretch.cli.commands import call, succeed


@pytest.fixture
def folder(tmp_path):
    built = tmp_path / "measured"
    write_world(built)
    shutil.copy(PROFILE_FOLDER / f"{DEVICE}.toml", tmp_path / f"{DEVICE}.toml")
    with nothing_borrowed():
        yield built


def test_fits_are_written_next_to_a_profile_and_used(capsys, folder):
    profile = folder.parent / f"{DEVICE}.toml"
    data = succeed(capsys, "profile", "fit", folder, "--device", profile, "--json", "--quiet").data
    assert data["file"] == str(profile.with_name(f"{DEVICE}.fit.json"))
    assert set(data["held_out"]) == {"cpu[1large] fp32", "cpu[1med] fp32", "cpu[2med] fp32"}
    written = json.loads((folder.parent / f"{DEVICE}.fit.json").read_text())
    assert written["command"] == f"stretch profile fit {folder} --device {DEVICE}"
    assert not list(folder.parent.glob(".*"))


def networks(folder, *rows):
    table = folder / "networks.csv"
    header = ["model", "processor", "ms", "precision", "macs"][: rows[0].count(",") + 1]
    table.write_text("\n".join([",".join(header), *rows]) + "\n")
    return table


def test_times_of_whole_networks_make_a_new_profile(capsys, tmp_path):
    table = networks(tmp_path, "resnet18,gpu,30", "squeezenet1_1,gpu,12")
    data = succeed(capsys, "profile", "fit", table, "--device", "pixel6", "--out", tmp_path / "mine", "--json", "--quiet").data
    [row] = data["held_out"].values()
    assert (data["profile"], row["networks"]) == ("mine", 2)
    assert row["low"] < 1 < row["high"]
    shown = succeed(capsys, "profile", "fit", table, "--device", "pixel6", "--out", tmp_path / "shown").out
    assert re.split(" {2,}", shown.splitlines()[0])[:3] == ["on networks left out", "networks", "within ±10 %"]
    fitted, base = load_device(tmp_path / "mine.toml"), load_device("pixel6")
    graph = load_measurements("npu").graphs["resnet18"]
    assert LatencyPredictor(fitted).predict(graph, "gpu").ms == pytest.approx(30, rel=0.2)
    assert LatencyPredictor(fitted).predict(graph, "cpu").ms == pytest.approx(LatencyPredictor(base).predict(graph, "cpu").ms)


def test_fit_keeps_defaults_and_names_processors_without_times(capsys, tmp_path):
    table = networks(tmp_path, "resnet18,cpu[1large],30", "squeezenet1_1,cpu[1large],12", "mobilenet_v2,cpu[1large],9")
    data = succeed(capsys, "profile", "fit", table, "--device", "s10", "--out", tmp_path / "mine", "--json", "--quiet").data
    assert [warning for warning in data["warnings"] if "gpu of mine" in warning] == []  # its GPU has its own fit
    data = succeed(capsys, "profile", "fit", table, "--device", "mi11", "--out", tmp_path / "other", "--json", "--quiet").data
    assert any("gpu" in warning and "dsp" in warning for warning in data["warnings"])
    before, after = load_device("mi11").processors["cpu"], load_device(tmp_path / "other.toml").processors["cpu"]
    assert (after.default_core_set, after.default_precision) == (before.default_core_set, before.default_precision)


@pytest.mark.parametrize(
    ("rows", "out", "message"),
    [
        (["resnet18,gpu,0"], "mine", "line 2: `ms` is wrong"),
        (["resnet18,npu,2"], "mine", "unknown processor of pixel6 `npu`"),
        (["resnet18,cpu[9large],20"], "mine", "unknown processor of pixel6 `cpu[9large]`"),
        (["resnet18,cpu,20,fp16"], "mine", "`cpu` does not run `fp16`"),
        (["resnet18,gpu,20"], "mi9", "cannot be the id of a new profile"),
        (["resnet18,gpu,20"], "nowhere/mine", "there is no folder"),
    ],
)
def test_bad_table_of_networks_leaves_nothing_behind(capsys, tmp_path, rows, out, message):
    table = networks(tmp_path, *rows)
    result = call(capsys, "profile", "fit", table, "--device", "pixel6", "--out", tmp_path / out)
    assert result.code
    assert message in result.message
    assert [path.name for path in tmp_path.iterdir()] == ["networks.csv"]


@pytest.mark.torch
def test_times_of_a_phone_are_imported(capsys, tmp_path):
    (tmp_path / "x.csv").write_text(PROFILE)
    args = ("--name", "myphone", "--from", tmp_path / "x.csv", "--model", "tiny_resnet", "--processor", "cpu[1large]", "--out", tmp_path)
    result = succeed(capsys, "profile", *args, "--json", "--quiet")
    assert json.loads(result.out)["networks"] == {"tiny_resnet": {"processor": "cpu[1large]", "precision": "fp32", "ms": 2.5}}
