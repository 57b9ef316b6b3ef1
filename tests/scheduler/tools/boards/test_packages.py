"""What a board is called, has and lacks."""

import importlib.util
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from predictors.errors import MissingBackendError, StretchError, UnknownNameError, UsageError
from scheduler.tools.boards import board
from scheduler.tools.boards.agent import facts
from scheduler.tools.boards.board import installer, package_archive, package_name, requirements
from scheduler.tools.boards.facts import check_facts, check_host, read_facts

HERE = read_facts("here", facts())
ARM = msgspec.structs.replace(HERE, machine="aarch64")


@pytest.mark.parametrize("extra", ["torch", "dev", "opencI", ""])
def test_extra_that_boards_have_no_use_for_is_refused(extra):
    with pytest.raises(UnknownNameError, match="unknown extra for a board"):
        requirements((extra,), HERE)


def test_folder_without_wheels_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(StretchError, match="is no folder with wheels"):
            package_name(requirements((), HERE), HERE, folder)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"system": "Darwin"}, "runs Darwin"),
        ({"machine": "riscv64"}, "board is riscv64"),
        ({"bits": 32, "machine": "aarch64"}, "aarch64 with a 32-bit Python"),
        ({"python": "3.9.2"}, "has Python 3.9.2, and here is"),
        ({"implementation": "pypy"}, "is pypy"),
        ({"implementation": "cpythont"}, "is cpythont"),
        ({"glibc": ""}, "has no glibc"),
    ],
)
def test_board_without_packages_is_refused_with_what_it_lacks(change, message):
    with pytest.raises(MissingBackendError, match=message) as refused:
        check_facts("board", msgspec.structs.replace(HERE, **change))
    assert refused.value.hint


@pytest.mark.parametrize("message", [None, [], {}, {**facts(), "cores": "many"}])
def test_what_is_no_facts_is_one_sentence(message):
    with pytest.raises(StretchError, match="what board says of itself cannot be read"):
        read_facts("board", message)


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "-", "--", "-me@board"])
def test_name_that_ssh_would_read_as_an_option_is_refused(name):
    with pytest.raises(UsageError, match="begins with a dash"):
        check_host(name)


@pytest.mark.slow
@given(st.text(max_size=12))
def test_no_name_that_is_taken_holds_what_a_shell_or_an_option_begins_with(name):
    try:
        taken = check_host(name)
    except UsageError:
        return
    assert not any(part.startswith("-") for part in taken.split("@"))
    assert not set(taken) & set(" \t\n\0;&|<>$`'\"\\(){}*?!#~=/,")


def test_nn_stretch_that_was_never_installed_says_so(monkeypatch):
    monkeypatch.setattr(board, "DISTRIBUTION", "nn-stretch-that-is-not-here")
    with pytest.raises(MissingBackendError, match="known only where it is installed"):
        board.distribution()
