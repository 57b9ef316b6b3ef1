"""`stretch compare`: results side by side."""

import json

import pytest

from tests.stretch.cli.commands import LOOSE, call, succeed
from tests.stretch.tools.report.html.reading import checked

DEVICES = ("--device", "pixel6", "--device", "mi9")


@pytest.mark.torch
def test_models_are_planned_for_each_device_and_a_refusal_is_a_row(capsys, tmp_path):
    page = tmp_path / "c.html"
    words = ("tiny_resnet", "tiny_vgg", *DEVICES, "--processors", "cpu,gpu", "--kinds", "stretch", *LOOSE, "--set", "macs=0.97:1.03")
    done = succeed(capsys, "compare", *words, "--html", page, "--json")
    rows = json.loads(done.out)["rows"]
    assert [row["name"] for row in rows] == [f"{name} on {device}" for name in ("tiny_resnet", "tiny_vgg") for device in ("pixel6", "mi9")]
    for row in rows:
        assert (row["kind"] == "refused") == (row["ms"] is None) == (row["reason"] is not None)
    assert any(row["ms"] for row in rows)
    seen = checked(page.read_text())
    for row in rows:
        assert row["name"] in seen.text


@pytest.mark.torch
def test_bundle_plan_search_and_run_stand_beside_each_other(capsys, tmp_path, tiny_bundle):
    model = ("tiny_resnet", "--device", "pixel6", "--weights", "none", *LOOSE)
    mapping = {
        "plan": call(capsys, "branch", *model, "--dry-run", "--json"),
        "front": call(capsys, "search", *model, "--processors", "cpu,gpu", "--top", 3, "--json"),
        "measured": call(capsys, "run", tiny_bundle, "--repeat", 2, "--warmup", 0, "--json"),
    }
    for name, done in mapping.items():
        assert done.code == 0, done.err
        (tmp_path / f"{name}.json").write_text(done.out)
    done = succeed(capsys, "compare", tiny_bundle, *(tmp_path / f"{name}.json" for name in mapping), "--json")
    rows, designs = done.data["rows"], json.loads(mapping["front"].out)["designs"]
    assert [row["kind"] for row in rows] == ["bundle", "plan", *["design of a search"] * len(designs), "run"]
    plan = json.loads(mapping["plan"].out)["predicted"]
    assert rows[0]["ms"] == pytest.approx(plan["makespan_ms"]) == rows[1]["ms"]
    assert [row["ms"] for row in rows[2:-1]] == [design["predicted_ms"] for design in designs]
    assert rows[-1]["ms"] == json.loads(mapping["measured"].out)["median_ms"]
    assert rows[-1]["source"] == "measured"
    assert "measured on a machine" in done.err
    people = call(capsys, "compare", tiny_bundle, tmp_path / "measured.json")
    assert "recommended" in people.out
