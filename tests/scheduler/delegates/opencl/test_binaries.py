import os
from pathlib import Path

import pytest

from scheduler.delegates.opencl import programs as binaries
from scheduler.delegates.opencl.programs import binary_file, binary_folder, read_binary, write_binary


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "nn-stretch" / "opencl"


def test_folder_follows_the_users_cache_folder(folder, tmp_path, monkeypatch):
    assert binary_folder() == folder
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert binary_folder() == tmp_path / ".cache" / "nn-stretch" / "opencl"


def test_what_is_written_is_read(folder):
    path = binary_file("device", "driver", "-DL=4", "source")
    assert read_binary(path) is None
    write_binary(path, b"code")
    assert read_binary(path) == b"code"
    assert [each.name for each in folder.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "other", [("d2", "driver", "o", "s"), ("d", "driver 2", "o", "s"), ("d", "driver", "o2", "s"), ("d", "driver", "o", "s2")]
)
def test_another_device_driver_option_or_source_has_a_file_of_its_own(other):
    assert binary_file(*other) != binary_file("d", "driver", "o", "s")


@pytest.mark.parametrize("damage", [lambda kept: kept[:-1], lambda kept: kept[:10], lambda kept: kept + b"x", lambda kept: b""])
def test_damaged_binary_is_not_read(damage):
    path = binary_file("d")
    write_binary(path, b"code of a kernel")
    path.write_bytes(damage(path.read_bytes()))
    assert read_binary(path) is None


def test_binaries_that_were_not_used_for_longest_are_dropped(monkeypatch):
    monkeypatch.setattr(binaries, "MAX_FILES", 2)
    paths = [binary_file(str(i)) for i in range(3)]
    for i, path in enumerate(paths[:2]):
        write_binary(path, b"code")
        os.utime(path, (i, i))
    read_binary(paths[0])
    write_binary(paths[2], b"code")
    assert [path.is_file() for path in paths] == [True, False, True]


def test_nothing_is_kept_where_nothing_can_be_written(folder):
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where the folder should be")
    write_binary(binary_file("d"), b"code")
    assert read_binary(binary_file("d")) is None
    assert Path(folder).is_file()
