import pytest

from stretch.cli.branch import _folder_name
from stretch.planning.messages import OptionName, as_flag
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
    ("words", "rules"),
    [
        (("--kinds", "stretch"), {"alpha": [0.2, 0.676]}),
        (("--alpha", "1000", "--beta", "1000", "--set", "macs=0.7:1.4", "--set", "n_meet=9"), {"n_meet": [9, 3]}),
    ],
)
def test_refusal_names_flags_and_its_json_has_the_rule_and_the_values(capsys, words, rules):
    result = call(capsys, "branch", "tiny_resnet", "--device", kept("pixel6"), "--dry-run", "--weights", "none", "--json", *words)
    assert result.code == 4
    data = result.data
    assert {item["rule"]: [item["value"], item["nearest"]] for item in data["rules"]} == rules
    ((name, (request, nearest)),) = rules.items()
    assert data["error"].endswith(f"the tightest is {as_flag(OptionName(name, request))}")
    assert data["hint"].startswith(
        f"the nearest value with a design is {as_flag(OptionName(name, nearest))}, or split the network as it is"
    )


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
def test_terminal_and_json_tell_the_same_warnings(capsys):
    words = ("mobilenet_v3_large", "--device", kept("mi9"), "--dry-run", "--weights", "none")
    invocation, data = call(capsys, "branch", *words), call(capsys, "branch", *words, "--json").data
    lines = [line.removeprefix("warning: ") for line in invocation.err.splitlines() if line.startswith("warning: ")]
    assert lines == data["warnings"]
    assert len(set(lines)) == len(lines)
    for part in ("not fitted to measurements", "stages are merged", "accuracy of this branched network is unknown"):
        assert sum(part in line for line in lines) == 1, part
    assert all(item["reason"] in lines for item in data["unused"])


@pytest.mark.torch
def test_bundle_is_written_recommendation_comes_first_and_accuracy_is_unknown_without_images_alone(capsys, tmp_path):
    folder = folder_of(tmp_path / "images", 16)
    flags = ("tiny_resnet", "--device", "pixel6", "--out", tmp_path / "b", *LOOSE)
    result = succeed(capsys, "branch", *flags)
    assert "is unknown" in result.err
    first, second = result.out.splitlines()[:2]
    assert first.startswith(("recommended: ", "no clear winner: "))
    assert second.startswith("weights: random")
    assert (tmp_path / "b" / "bundle.json").is_file()
    assert f"stretch run {tmp_path / 'b'}" in result.out
    calibrated = succeed(capsys, "branch", *(*flags, "--images", folder))
    assert "is unknown" not in calibrated.err


@pytest.mark.torch
@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        ((), 4, "nothing was written, --anyway writes the branches all the same"),
        (("--anyway",), 0, "the branches were written"),
        pytest.param(("--dry-run",), 0, "the branches take", marks=pytest.mark.slow),
    ],
)
def test_branches_that_a_control_beats_are_written_only_on_request_and_the_first_line_says_so(capsys, tmp_path, words, code, line):
    # ten outputs of a small network: nothing that is divided over these processors gains what an exchange costs
    request = ("tiny_resnet", "--device", kept("mi9"), "--processors", "cpu,gpu", "--lossless", "--weights", "none", *BARE)
    result = call(capsys, "branch", *request, *words, "--out", str(tmp_path / "b"))
    assert result.code == code, result.err
    first = result.out.splitlines()[0]
    assert first.startswith("recommended: the original on ")
    assert line in first
    assert (tmp_path / "b" / "bundle.json").is_file() is ("were written" in line)
    data = call(capsys, "branch", *request, *words, "--out", str(tmp_path / "c"), "--json").data
    assert (data["written"], data["withheld"]) == ("branched" if "were written" in line else None, code == 4)
    assert data["recommended"].startswith("single:")


@pytest.mark.torch
def test_operators_split_are_a_bundle_whose_makespan_is_the_controls(capsys, tmp_path):
    words = ("tiny_resnet", "--device", "host", "--out", str(tmp_path / "b"), "--json", "--weights", "none", *BARE)
    data = succeed(capsys, "branch", *words, "--set", "strategy=operator_split").data
    assert data["exact"]
    assert data["n_meet"] >= 1
    assert data["operator_split_design"]["segments"]
    assert data["predicted"]["operator_split_ms"] <= data["predicted"]["makespan_ms"] + 1e-9
    assert data["checks"]["max_error"] <= 1e-4
