"""`stretch devices` lists the profiles."""

import json

import pytest

from predictors.devices import load_device
from stretch.cli import app


def run(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        app(["devices", *words])
    return stop.value.code, *capsys.readouterr()


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
