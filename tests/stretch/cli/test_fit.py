"""`stretch fit`: a folder of measurements becomes fits, or is refused in a sentence."""

import json
import shutil

import pytest

from predictors.devices import PROFILE_FOLDER
from predictors.measurements.networks import LATENCIES, SOURCE
from tests.predictors.fitting.worlds import DEVICE, write_world
from tests.stretch.cli.commands import call


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "measured"
    write_world(made)
    shutil.copy(PROFILE_FOLDER / f"{DEVICE}.toml", tmp_path / f"{DEVICE}.toml")
    return made


def test_fits_are_written_beside_a_profile_and_used(capsys, folder):
    profile = folder.parent / f"{DEVICE}.toml"
    result = call(capsys, "fit", folder, "--device", profile, "--json", "--quiet")
    assert result.code == 0, result.out
    data = json.loads(result.out)
    assert data["file"] == str(profile.with_name(f"{DEVICE}.fit.json"))
    assert set(data["held_out"]) == {"cpu[1large] fp32", "cpu[1med] fp32", "cpu[2med] fp32"}
    written = json.loads((folder.parent / f"{DEVICE}.fit.json").read_text())
    assert written["command"] == f"stretch fit {folder} --device {DEVICE}"
    assert not list(folder.parent.glob(".*"))


@pytest.mark.parametrize(
    ("file", "old", "new", "message", "code"),
    [
        (LATENCIES, "precision,runtime,ms", "precision,runtime,us", "`us` is no column", 1),
        (LATENCIES, ",r,", ",r,nan", "`ms` is wrong", 1),
        (SOURCE, "title", "titel", "does not say where measurements come from", 1),
    ],
)
def test_bad_measurements_are_refused_and_nothing_is_written(capsys, folder, file, old, new, message, code):
    path = folder / file
    path.write_text(path.read_text().replace(old, new))
    result = call(capsys, "fit", folder, "--device", DEVICE, "--out", folder.parent / "made.json")
    assert result.code == code
    assert message in result.message
    assert not (folder.parent / "made.json").exists()


def test_folder_to_write_into_that_is_missing_is_told_before_anything_is_read(capsys, folder):
    result = call(capsys, "fit", folder, "--device", DEVICE, "--out", folder / "no" / "made.json")
    assert result.code == 1
    assert "there is no folder" in result.message


def test_measurements_that_there_are_not_are_told(capsys):
    result = call(capsys, "fit", "fones", "--device", DEVICE, "--out", "made.json")
    assert result.code == 3
    assert result.hint == "did you mean `phones`?"
