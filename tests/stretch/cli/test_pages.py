"""`--html` writes the report of what a verb found, also of a refusal, and never half of one."""

import json

import pytest

from tests.stretch.cli.commands import LOOSE, call, succeed
from tests.stretch.tools.report.html.reading import checked

TINY = ("tiny_resnet", "--device", "pixel6", "--weights", "none")


@pytest.mark.torch
def test_branch_reports_what_its_json_says_and_the_command(capsys, tmp_path):
    page = tmp_path / "a <b> & c.html"
    done = succeed(capsys, "branch", *TINY, *LOOSE, "--dry-run", "--html", page, "--json")
    data, seen = done.data, checked(page.read_text())
    assert f"take {data['predicted']['makespan_ms']:.2f} ms" in seen.text
    for warning in data["warnings"]:
        assert " ".join(warning.split()) in seen.text
    assert "a <b> & c.html" in seen.text
    assert "stretch branch tiny_resnet --device pixel6" in seen.text
    assert f"report: {page}" in done.err


@pytest.mark.torch
def test_refusal_has_a_report_and_keeps_its_exit_code(capsys, tmp_path):
    page = tmp_path / "refused.html"
    done = call(capsys, "branch", *TINY, "--set", "macs=0.97:1.03", "--alpha", "0.000001", "--dry-run", "--html", page)
    assert done.code == 4, done.err
    seen = checked(page.read_text())
    assert "no branches" in seen.text
    assert "run it on" in seen.text
    assert "--alpha" in seen.text


def test_simulate_reports_latencies_loads_and_the_first_inference(tmp_path, bundle_dir, capsys):
    page = tmp_path / "s.html"
    words = ("--inferences", 40, "--busy", "gpu=0.9@5:60", "--deadline", 8, "--jitter", 0.1, "--beside", bundle_dir)
    done = succeed(capsys, "simulate", bundle_dir, *words, "--html", page, "--json")
    data, seen = json.loads(done.out), checked(page.read_text())
    assert f"{data['missed']} of 40" in seen.text
    assert f"p99 {data['p99_ms']:.2f} ms" in seen.text
    assert "90% of gpu taken by others" in seen.text
    assert "What shared the processors" in seen.text


def test_run_reports_what_was_measured_and_what_was_planned(tmp_path, bundle_dir, capsys):
    page = tmp_path / "r.html"
    done = succeed(capsys, "run", bundle_dir, "--repeat", 3, "--warmup", 0, "--html", page, "--json")
    data, seen = json.loads(done.out), checked(page.read_text())
    assert f"{data['median_ms']:.2f} ms" in seen.text
    assert data["verdict"] in seen.text
    assert seen.tags.count("svg") >= 2


@pytest.mark.parametrize(
    ("verb", "words"),
    [("branch", ("no_such_model", "--device", "pixel6")), ("predict", ("no_such_model", "--device", "pixel6")), ("run", ("gone",))],
)
def test_page_that_cannot_be_written_is_refused_before_anything_else(tmp_path, capsys, verb, words):
    done = call(capsys, verb, *words, "--html", tmp_path / "gone" / "x.html")
    assert done.code == 2
    assert "does not exist" in done.message
    assert call(capsys, verb, *words, "--html", tmp_path / "x.pdf").code == 2
    assert not list(tmp_path.iterdir())
