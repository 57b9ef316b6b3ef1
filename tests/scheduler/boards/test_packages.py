import importlib.util
import sys
from importlib import metadata
from pathlib import Path

import msgspec
import pytest
from packaging.requirements import Requirement

from predictors.errors import MissingBackendError, StretchError, UnknownNameError
from scheduler.boards.line import facts
from scheduler.boards.facts import read_facts
from scheduler.boards.packages import EXTRAS, installer, package_archive, package_name, pins, requirements

HERE = read_facts("here", facts())
ARM = msgspec.structs.replace(HERE, machine="aarch64")


def names(stated):
    return {each.name for each in stated}


def test_base_install_needs_no_torch_and_no_extra():
    assert {"numpy", "onnx", "onnxruntime", "msgspec", "packaging"} <= names(requirements((), HERE))
    assert names(requirements((), HERE)).isdisjoint({"torch", "scipy", "pyopencl", "pytest"})


def test_extras_add_what_they_state():
    assert names(requirements(("fit", "opencl"), HERE)) - names(requirements((), HERE)) == {"scipy", "scikit-learn", "pyopencl"}


@pytest.mark.parametrize("extra", ["torch", "dev", "opencI", ""])
def test_extra_that_boards_have_no_use_for_is_refused(extra):
    with pytest.raises(UnknownNameError, match="unknown extra for a board"):
        requirements((extra,), HERE)


def test_every_extra_of_boards_is_one_of_ours():
    assert set(EXTRAS) <= set(metadata.metadata("nn-stretch").get_all("Provides-Extra"))


def test_versions_are_those_installed_here_down_to_the_last_package():
    found = dict(pin.split("==") for pin in pins(requirements((), HERE), HERE))
    assert found["numpy"] == metadata.version("numpy")
    # only onnxruntime needs it
    assert found["flatbuffers"] == metadata.version("flatbuffers")
    assert "torch" not in found
    assert "nn-stretch" not in found


def test_what_is_not_installed_here_is_not_pinned():
    assert pins([Requirement("nn-stretch-has-no-such-package>=1")], HERE) == []


def test_names_of_folders_differ_with_all_that_decides_what_is_in_them(tmp_path):
    base = requirements((), HERE)
    (tmp_path / "a-1-py3-none-any.whl").write_bytes(b"1")
    given = [
        package_name(base, HERE, None),
        package_name(base, ARM, None),
        package_name(requirements(("fit",), HERE), HERE, None),
        package_name(base, HERE, tmp_path),
    ]
    assert len(set(given)) == 4
    (tmp_path / "a-1-py3-none-any.whl").write_bytes(b"12")
    assert package_name(base, HERE, tmp_path) != given[3]
    assert package_name(base, HERE, None) == given[0]


def test_folder_without_wheels_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(StretchError, match="is no folder with wheels"):
            package_name(requirements((), HERE), HERE, folder)


def test_wheels_that_lack_one_package_are_told_of(tmp_path):
    (tmp_path / "colourful-1-py3-none-any.whl").write_bytes(b"")
    stated = requirements((), ARM)
    with (
        pytest.raises(MissingBackendError, match="cannot be had") as refused,
        package_archive("board", ARM, stated, "packages/x", tmp_path),
    ):
        pass
    assert str(tmp_path) in refused.value.hint
    assert "aarch64" in refused.value.message


@pytest.mark.representatives(1)
@pytest.mark.parametrize("program", ["pip", "uv"])
def test_one_wheel_of_a_folder_becomes_files_to_import(program, tmp_path, monkeypatch):
    import zipfile

    present = importlib.util.find_spec
    if program == "uv":
        if not Path(sys.executable).with_name("uv").is_file():
            pytest.skip("uv is not installed")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else present(name))
    elif present("pip") is None:
        pytest.skip("pip is not installed")
    assert ("uv" in installer(ARM)[0]) == (program == "uv")
    # a wheel for the board's processor, which this machine may not have
    with zipfile.ZipFile(tmp_path / "tiny-1.0-cp311-cp311-manylinux_2_17_aarch64.whl", "w") as wheel:
        wheel.writestr("tiny.py", "x = 1\n")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
        wheel.writestr(
            "tiny-1.0.dist-info/WHEEL",
            f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}-{tag}-manylinux_2_17_aarch64\n",
        )
        wheel.writestr(
            "tiny-1.0.dist-info/RECORD",
            "tiny.py,,\ntiny-1.0.dist-info/METADATA,,\ntiny-1.0.dist-info/WHEEL,,\ntiny-1.0.dist-info/RECORD,,\n",
        )
    (tmp_path / "tiny-1.0-cp311-cp311-manylinux_2_17_aarch64.whl").rename(tmp_path / f"tiny-1.0-{tag}-{tag}-manylinux_2_17_aarch64.whl")
    with package_archive("board", ARM, [Requirement("tiny>=1")], "packages/x", tmp_path) as archive:
        assert "tiny.py" in archive.files
        folder = archive.files["tiny.py"].parent
    assert not folder.exists()


def test_machine_with_neither_pip_nor_uv_is_told_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingBackendError, match="neither is here"):
        installer(ARM)


@pytest.mark.parametrize(("glibc", "newest"), [("2.36", "manylinux_2_36"), ("2.17", "manylinux_2_17"), ("2.28", "manylinux_2_28")])
def test_wheels_are_for_the_boards_glibc_or_an_older_one(glibc, newest):
    words = installer(msgspec.structs.replace(ARM, glibc=glibc))
    tags = [words[at + 1] for at, word in enumerate(words) if word.startswith(("--platform", "--python-platform"))]
    assert newest in tags[0]
    assert not any(f"_2_{n}" in tag for tag in tags for n in range(int(glibc[2:]) + 1, 60))
