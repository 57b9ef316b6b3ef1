"""Refusals of the release tool; the tests build the inspected files."""

import json
import subprocess
import sys
import zipfile

import pytest

from tools import release
from tools.release import FailedError, build, check_complete, check_names, check_version, inspect_packages

CHANGES = "# Changes\n\n## 1.2.3 (2026-01-31)\n\n- a\n\n## 1.2.2 (2025-01-01)\n"
INSIDE = {"stretch/__init__.py": b'__version__ = "1.2.3"'}
NAME = "nn_stretch-1.2.3-py3-none-any.whl"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("hatchling")
    return build(tmp_path_factory.mktemp("dist"))


@pytest.mark.slow
def test_files_of_this_checkout_are_complete_and_name_no_machine(built):
    result = inspect_packages(*built, "## nothing")
    assert result["complete"].endswith(" files")
    assert result["no machine's names"] == "none"
    assert result["version"].startswith("failed: CHANGELOG.md begins with `nothing`")

    # the wheel does not depend on torch without extras
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = [item for item in wheel.namelist() if item.endswith("METADATA")]
        needed = [line for line in wheel.read(name).decode().splitlines() if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    assert {"torch" in line for line in needed} == {False}


@pytest.mark.parametrize(
    ("stated", "inside", "changes", "sentence"),
    [
        ("1.2.3", INSIDE, "## Unreleased\n\n" + CHANGES, "`Unreleased`"),
        *(
            ("1.2.3", INSIDE, CHANGES.replace(date, other), "not with 1.2.3")
            for date, other in ((" (2026-01-31)", ""), ("2026-01-31", "soon"))
        ),
        ("1.2.3", INSIDE, "", "begins with `nothing`"),
        ("1.2.4", INSIDE, CHANGES, "says 1.2.4"),
        ("1.2.3", {"stretch/__init__.py": b'__version__ = "1.2.2"'}, CHANGES, "says 1.2.3"),
    ],
)
def test_inconsistent_version_is_refused(stated, inside, changes, sentence):
    with pytest.raises(FailedError, match=sentence):
        check_version(stated, NAME, inside, changes)


def test_wheel_without_a_file_of_the_sdist_is_refused():
    inside = {name + "x" * name.endswith("/"): b"" for name in release.NEEDED}
    assert check_complete(inside, {"stretch/cli/__init__.py": b"", "docs/x.md": b""}) == f"{len(inside)} files"
    without = {name: b"" for name in inside if "agent" not in name}
    for wheel, sdist, lacking in ((inside, {"stretch/new.py": b""}, "new"), (without, {}, "agent")):
        with pytest.raises(FailedError, match=rf"lacks .*{lacking}\.py"):
            check_complete(wheel, sdist)


@pytest.mark.parametrize("text", ["/" + "home/me/x", "10.0.0.1" + ":8080", "index-" + "url = https:" + "//x"])
def test_files_that_name_a_machine_are_refused(text):
    with pytest.raises(FailedError, match="a names "):
        check_names({"a": text.encode()})
    assert check_names({"a": b"\xff" + text.encode(), "b": b"plain"}) == "none"


@pytest.mark.slow
def test_program_of_the_wheel_lists_verifies_and_runs_without_torch(built, tiny_bundle, tmp_path):
    try_install = release.try_install(sys.executable, built[0], tiny_bundle, tmp_path / "environment", {})
    assert not [value for value in try_install.values() if value.startswith("failed")], try_install
    assert try_install["verify"] == "ok"
    code = "import json, importlib.util as u; print(json.dumps([u.find_spec(name) is None for name in ('torch', 'scipy')]))"
    process = subprocess.run([tmp_path / "environment/bin/python", "-c", code], capture_output=True, check=True)
    assert json.loads(process.stdout) == [True, True]
