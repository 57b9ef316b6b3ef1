"""`stretch devices` lists the profiles."""

import json

import pytest

from predictors.devices import list_devices, load_device
from stretch.cli import app


def run(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        app(["devices", *words])
    return stop.value.code, *capsys.readouterr()


@pytest.mark.slow
def test_json_lists_every_profile_with_its_processors(capsys):
    code, out, _ = run(capsys, "--json")
    items = json.loads(out)["items"]
    assert code == 0
    assert [item["id"] for item in items] == list_devices()
    mi9 = next(item for item in items if item["id"] == "mi9")
    assert set(mi9["processors"]) == {"cpu", "gpu", "dsp"}
    assert mi9["processors"]["dsp"]["width_slice"] == 32
    assert "3med" in mi9["processors"]["cpu"]["core_sets"]
    assert mi9["calibrated"] is False


def test_table_says_which_profiles_are_not_fitted(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    row = next(line for line in out.splitlines() if line.startswith("pixel6"))
    assert "Google Pixel 6" in row
    assert row.split()[-1] == "none"


def test_one_device_tells_its_chip_processors_sources_and_what_is_left_out(capsys):
    code, out, _ = run(capsys, "s24")
    assert code == 0
    text = " ".join(out.split())
    for part in ("SM8650", "npu: fp16, int8", "from a fit to measurements", "device s24", "gpu: left out; its times were never measured"):
        assert part in text
    profile = load_device("s24")
    assert all(" ".join(words.split()) in text for words in profile.sources.values())
    [item] = json.loads(run(capsys, "sm8650", "--json")[1])["items"]
    assert (item["id"], item["left_out"], item["sources"]) == ("s24", profile.left_out, profile.sources)
