"""The whole command line: verbs, usage errors, version, lists, and completion in a shell."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from predictors.devices import list_devices, load_device
from stretch.cli import VERBS
from stretch.cli.help import COMMON, EXAMPLES, HEADINGS
from stretch.profile.environment import OTHERS, version
from tests.stretch.cli.commands import call, succeed


def test_help_lists_every_verb_in_order_and_each_has_the_shared_options(capsys):
    done = call(capsys)
    listed = [
        line.strip().partition("  ")[0]
        for line in done.out.partition("Decide:")[2].splitlines()
        if line.startswith("  ") and line[2] != " "
    ]
    assert all(f"\n{heading}:\n" in done.out for heading in HEADINGS)
    assert (done.code, listed, done.err) == (0, list(VERBS), "")
    for name in VERBS:
        assert {"--json", "--quiet", "--debug"} <= set(succeed(capsys, *name.split(), "--help").out.split()), name


def test_help_of_every_verb_begins_with_two_examples_whose_options_exist(capsys):
    assert EXAMPLES.keys() == VERBS.keys()
    for name, examples in EXAMPLES.items():
        text = succeed(capsys, *name.split(), "--help").out
        remote = succeed(capsys, *name.split(), "--help-remote").out
        assert len(examples) == 2
        for example in examples:
            assert f"  {example}\n" in text.partition("Arguments:")[0]
            flags = [arg for arg in example.split() if arg.startswith("--")]
            assert all(re.search(rf"{flag}\b", text.partition("Common:")[2] + text + remote) for flag in flags), example
        assert all(f"{flag}" in text for flag in COMMON.get(name, "").split()), name
        for short, long in (("-d", "--device"), ("-o", "--out"), ("-q", "--quiet")):
            assert not re.search(rf"^  {short}, (?!{long})", text, re.MULTILINE), name
            assert f"  {long} <" not in text, name
        assert not re.search(r"list\[|range>|default: \(", text)


def test_version_is_printed_and_usage_errors_name_the_closest_verb_or_are_one_json_object(capsys):
    assert succeed(capsys, "--version").out == "nn-stretch 0.1.0\n"
    wrong = call(capsys, "profil")
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err == "error: no such command 'profil'\n\nhint: did you mean `profile`?\n"
    wrong = call(capsys, "verify", "bundle", "--json", "extra")
    assert (wrong.code, wrong.err, wrong.data["schema"], "extra" in wrong.data["error"]) == (2, "", 1, True)
    assert wrong.data["hint"]
    assert "Choose from: devices, models," in call(capsys, "list").err


def test_options_of_phones_and_boards_are_shown_by_help_remote(capsys):
    text, remote = (succeed(capsys, "run", flag).out for flag in ("--help", "--help-remote"))
    assert ("--benchmark-model" in text, "stretch run --help-remote" in text) == (False, True)
    assert all(flag in remote for flag in ("--benchmark-model", "--ssh-config", "--wheels"))


def test_closed_output_pipe_gives_no_traceback():
    command = f"{sys.executable} -c 'from stretch.cli import app; app()' list devices | true"
    assert subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stderr == ""


def test_every_delegate_is_listed(succeeds):
    items = {item["name"]: item for item in succeeds("list", "delegates", "--json")[0]["items"]}
    assert (items["reference"]["available"], items["null"]["computes"]) == (True, False)
    assert items["cpu"]["module"] == "scheduler.delegates.cpu"


def test_details_of_a_device_show_its_chip_processors_sources_and_omitted_processors(succeeds):
    short, _ = succeeds("list", "devices", "s24")
    assert (len(short.splitlines()) <= 14, "measurements" in short) == (True, True)
    assert "--device 'Galaxy S24'" in succeeds("list", "devices", "Galaxy S24")[0]
    text, profile = " ".join(succeeds("list", "devices", "s24", "--details")[0].split()), load_device("s24")
    expected = ("SM8650", "npu: fp16, int8", "from a fit to measurements", "device s24", "gpu: left out; its times were never measured")
    assert [part for part in (*expected, *profile.sources.values()) if " ".join(part.split()) not in text] == []
    [item] = succeeds("list", "devices", "sm8650", "--json")[0]["items"]
    assert (item["id"], item["left_out"], item["sources"]) == ("s24", profile.left_out, profile.sources)


@pytest.mark.slow
def test_list_env_warns_of_a_foreign_distribution_that_owns_one_of_our_packages(tmp_path):
    foreign = tmp_path / "scheduler-9.0.dist-info"
    foreign.mkdir()
    (foreign / "METADATA").write_text("Metadata-Version: 2.1\nName: scheduler\nVersion: 9.0\n")
    (foreign / "top_level.txt").write_text("scheduler\n")
    command = [sys.executable, "-P", "-c", "from stretch.cli import app; app()", "list", "env", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert "`scheduler`" in result.stderr
    assert "pip uninstall scheduler" in json.loads(result.stdout)["warnings"][0]


def completed(home, *args):
    """Completions of the last argument in a bash without user settings."""
    quoted = " ".join(f"'{arg}'" for arg in args)
    script = (
        'script="$(stretch --show-completion)"; eval "$script"; '
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(args) - 1}; _stretch_completion stretch; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "HOME": str(home), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "--noprofile", "--norc", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines())


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("args", "choices"),
    [
        (("stretch", ""), set(VERBS)),
        (("stretch", "branch", "--dev"), {"--device"}),
        (("stretch", "branch", "tiny_resnet", "--device", ""), set(list_devices())),
        (("stretch", "branch", "tiny_resnet", "--set", "merg"), {"merge="}),
        (("stretch", "branch", "tiny_resnet", "--set", "merge="), {"merge=always", "merge=auto", "merge=never"}),
        (("stretch", "explain", "bundle", "-d", "pix"), {"pixel4", "pixel6"}),
        (("stretch", "branch", "tiny_re"), {"tiny_regnet", "tiny_resnet"}),
        (("stretch", "train", "resnet56_cifar10_s"), {"resnet56_cifar10_supernet"}),
        (("stretch", "branch", "./mine.py"), {""}),
        (("stretch", "explain", "net.onnx", "--runtime", "o"), {"onnxruntime", "openvino", "opencl"}),
    ],
    ids=lambda value: " ".join(value if isinstance(value, tuple) else sorted(value)),
)
def test_bash_completes_verbs_flags_devices_and_models(tmp_path, args, choices):
    assert completed(tmp_path, *args) == choices


@pytest.mark.torch
def test_models_are_listed_by_a_wildcard_with_their_family_and_in_detail(stretch):
    rows = [{"name": f"tiny_{name}", "family": "tiny", "checked": True} for name in ("regnet", "resnet")]
    assert stretch("list", "models", "tiny_re*", "--json")[1]["items"] == rows
    code, out, err = stretch("list", "models", "resnt50")
    assert (code, out) == (3, "")
    assert "did you mean `resnet50`?" in err
    _, answer, _ = stretch("list", "models", "tiny_resnet", "--details", "--input", "3x64x64", "--json")
    assert answer["items"][0]["stages"][0]["shape"][2:] == [64, 64]


def test_every_package_of_a_delegates_extra_is_listed_with_its_version():
    extras = {"opencl", "litert", "openvino", "ncnn", "qnn"}
    brought = [line for line in metadata.requires("nn-stretch") if any(f"extra == '{extra}'" in line for extra in extras)]
    names = {re.match(r"[\w.-]+", line)[0] for line in brought}
    assert len(names) >= len(extras)
    assert names <= set(OTHERS)
    assert version("no-such-distribution") is None
