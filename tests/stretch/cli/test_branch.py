import contextlib
import re
import sys

import msgspec
import pytest

from scheduler.bundle.load import load_bundle
from stretch.cli.branch import _folder_name
from stretch.planning.design.branch_design import BranchDesign, design_to_toml
from tests.predictors.specified import kept
from tests.stretch.cli.commands import call, succeed
from tests.stretch.pictures import folder_of

BARE = ("--set", "controls=false")
LOOSE = ["--alpha", "1000", "--beta", "1000", "--set", "macs=0.7:1.4", "--weights", "none"]


@pytest.mark.torch
def test_dry_run_and_no_export_leave_no_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for flag in (["--dry-run"], ["--set", "export=false"]):
        succeed(capsys, "branch", "tiny_resnet", "--device", "pixel6", *flag, *LOOSE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torch
@pytest.mark.parametrize(
    ("args", "rules"),
    [
        (("--kinds", "stretch"), {"alpha": [0.2, 0.676]}),
        (("--alpha", "1000", "--beta", "1000", "--set", "macs=0.7:1.4", "--set", "n_meet=9"), {"n_meet": [9, 3]}),
    ],
)
def test_refusal_names_the_option_and_its_json_has_the_rule_and_the_values(capsys, args, rules):
    result = call(capsys, "branch", "tiny_resnet", "--device", kept("pixel6"), "--dry-run", "--weights", "none", "--json", *args)
    assert result.code == 4
    data = result.data
    assert {item["rule"]: [item["value"], item["nearest"]] for item in data["rules"]} == rules
    ((name, (request, nearest)),) = rules.items()
    assert data["error"].endswith(f"the tightest is `{name}={request}`")
    assert data["hint"].startswith(f"the nearest value with a design is `{name}={nearest}`, or split the network as it is")


@pytest.mark.parametrize(
    ("model", "device", "name"),
    [
        ("resnet50", "pixel6", "resnet50_pixel6"),
        ("package.module:factory", "profiles/my box.toml", "factory_my-box"),
        ("timm:resnet18d", "mi9", "resnet18d_mi9"),
    ],
)
def test_folder_is_named_after_model_and_device(model, device, name):
    assert _folder_name(model, device) == name


@pytest.mark.slow
@pytest.mark.torch
def test_terminal_and_json_show_the_same_warnings(capsys):
    args = ("mobilenet_v3_large", "--device", kept("mi9"), "--dry-run", "--weights", "none")
    outcome, data = call(capsys, "branch", *args), call(capsys, "branch", *args, "--json").data
    lines = [line.removeprefix("warning: ") for line in outcome.err.splitlines() if line.startswith("warning: ")]
    assert (lines, len(set(lines))) == (data["warnings"], len(lines))
    for part in ("not fitted to measurements", "stages are merged", "accuracy unknown"):
        assert sum(part in line for line in lines) == 1, part
    assert all(item["reason"] in lines for item in data["unused"])


@pytest.mark.torch
def test_recommendation_is_printed_first_and_accuracy_is_unknown_only_without_images(capsys, tmp_path):
    folder = folder_of(tmp_path / "images", 16)
    flags = ("tiny_resnet", "--device", "pixel6", "--out", tmp_path / "b", *LOOSE)
    result = succeed(capsys, "branch", *flags, "--details")
    assert "accuracy unknown" in result.err
    assert result.out.startswith("Branching is ")
    assert any(line.startswith("weights: random") for line in result.out.splitlines())
    assert (tmp_path / "b" / "bundle.json").is_file()
    assert f"stretch run {tmp_path / 'b'}" in result.out
    calibrated = succeed(capsys, "branch", *flags, *BARE, "--images", folder)
    assert "accuracy unknown" not in calibrated.err


#: A small network with ten outputs: no division over these processors gains more than its transfers cost.
LOSING = ("tiny_resnet", "--device", kept("mi9"), "--processors", "cpu,gpu", "--lossless", "--weights", "none")


@pytest.mark.torch
def test_branches_slower_than_a_baseline_are_written_with_it_and_the_last_line_runs_it(capsys, tmp_path):
    with contextlib.redirect_stderr(sys.stdout):
        lines = succeed(capsys, "branch", *LOSING, "--out", tmp_path / "b").out.splitlines()
    first, last = lines[0], lines[-2]
    assert first.startswith("Branching is not recommended: tiny_resnet on mi9 ")
    assert any(re.search(r"^original, .* only .* \d\.\d\dx \(\d\.\d\d-\d\.\d\d\) +unchanged", line) for line in lines)
    warning_lines = [number for number, line in enumerate(lines) if line.startswith("warning: ")]
    assert not warning_lines or warning_lines[0] > max(number for number, line in enumerate(lines) if line.startswith("Confidence: "))
    assert (tmp_path / "b" / "original.onnx").is_file()
    assert last == f"Next: stretch run {tmp_path / 'b'} --recommended"
    args = last.split()[2:]
    assert "original.onnx" in succeed(capsys, *args, "--repeat", 1, "--warmup", 0).out.replace("\n", " ")
    data = succeed(capsys, "branch", *LOSING, *BARE, "--out", tmp_path / "c", "--json").data
    assert (data["written"], data["withheld"], data["recommended"].partition(":")[0]) == ("branched", False, "single")
    assert "Next: stretch advise tiny_resnet\n" in succeed(capsys, "branch", *LOSING, "--dry-run").out


@pytest.mark.torch
@pytest.mark.parametrize("more", [(), pytest.param(("--dry-run",), marks=pytest.mark.slow)])
def test_only_if_faster_writes_nothing_and_exits_with_4_if_branches_are_not_recommended(capsys, tmp_path, more):
    args = ("branch", *LOSING, "--only-if-faster", *more, "--out", tmp_path / "b")
    refused = call(capsys, *args)
    assert refused.code == 4
    assert refused.out.startswith("Branching is not recommended: ")
    assert "--only-if-faster" in refused.out
    assert len(refused.out.splitlines()) <= 14
    data = call(capsys, *args, "--json").data
    assert (data["written"], data["withheld"], data["bundle"]) == (None, True, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.torch
def test_only_if_faster_changes_nothing_if_branches_are_recommended(capsys):
    args = ("branch", "resnet34", "--device", "a03s", "--weights", "none", "--dry-run")
    plain, strict = (succeed(capsys, *args, *more).out for more in ((), ("--only-if-faster",)))
    assert plain.partition("Next: ")[0] == strict.partition("Next: ")[0]
    assert re.match(r"Branching is recommended: resnet34 on a03s, predicted 1\.\d\dx faster ", plain)


@pytest.mark.slow
@pytest.mark.torch
def test_fp32_files_of_an_int8_plan_give_one_warning_with_the_command_that_converts_them(capsys, tmp_path):
    folder, out = folder_of(tmp_path / "images", 16), tmp_path / "b"
    args = ("branch", "tiny_resnet", "--device", kept("mi9"), "--processors", "cpu,gpu", "--out", out, *BARE, "--json")
    data = succeed(capsys, *args, *LOOSE).data
    assert data["precision"] == {"cpu": "int8", "gpu": "fp16"}
    [message] = [warning for warning in data["warnings"] if "int8" in warning and "fp32" in warning]
    assert "files are fp32" in message
    command = message.split("`")[1].replace("FOLDER", str(folder)).split()
    assert succeed(capsys, *command[1:], "--min-cosine", 0.9).code == 0
    assert "int8" in {entry.precision for entry in load_bundle(f"{out}_int8").manifest.subgraphs}
    exact = succeed(capsys, *args, *LOOSE[4:], "--lossless", "--alpha", "0.2", "--beta", "1.1").data
    assert not [warning for warning in exact["warnings"] if "files are fp32" in warning]


@pytest.mark.torch
def test_design_of_an_operator_split_becomes_a_bundle_with_its_predicted_time(capsys, tmp_path):
    args = ("tiny_resnet", "--device", "host", "--json", "--weights", "none", *BARE)
    planned = succeed(capsys, "branch", *args, "--lossless", "--dry-run").data
    path = tmp_path / "split.toml"
    path.write_text(design_to_toml(msgspec.convert(planned["operator_split_design"], BranchDesign)))
    data = succeed(capsys, "branch", *args, "--design", path, "--out", tmp_path / "b").data
    assert (data["exact"], data["checks"]["max_error"] <= 1e-4) == (True, True)
    assert data["predicted"]["makespan_ms"] == pytest.approx(planned["predicted"]["operator_split_ms"])
