import os
import socket

import pytest

from predictors.errors import StretchError
from predictors.files import MAX_TOML_BYTES, open_regular, read_bytes, read_toml, readable, write_whole


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder", "missing", "nul"])
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path, kind):
    path = tmp_path / "f"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "nul":
        path = tmp_path / "a\0b"
    with socket.socket(socket.AF_UNIX) as end:
        if kind == "socket":
            end.bind(str(path))
        with pytest.raises(StretchError, match="cannot read the thing"):
            read_bytes(path, "thing", 5)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = " + "[" * 100_000, "nested deeper"),
        ("a = " + "[" * 40 + "]" * 40, "nested deeper"),
        ("[" + ".".join("a" * 50) + "]", "nested deeper"),
        (".".join("a" * 100_000) + " = 1", "dots"),
        ("[" + ".".join("a" * 100_000) + "]", "dots"),
        ("[a]\nb = [1.0, inf]", r"`a\.b\[1\]` is inf"),
        ("a = nan", "`a` is nan"),
        ("seed = 9223372036854775808", "`seed` is a number of more than 63 bits"),
        ("seed = -99999999999999999999999999", "63 bits"),
        ("seed = " + "9" * 10_000, "digits"),
        ("a = ", "Invalid"),
    ],
)
def test_toml_that_no_file_of_ours_is_is_one_sentence(tmp_path, text, problem):
    (tmp_path / "f.toml").write_text(text)
    with pytest.raises(StretchError, match=problem) as caught:
        read_toml(tmp_path / "f.toml", "design", "look at an example")
    assert "is not a design" in caught.value.message
    assert caught.value.hint == "look at an example"


def test_toml_that_is_no_text_or_too_large_is_refused(tmp_path):
    (tmp_path / "f.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(StretchError, match="UTF-8"):
        read_toml(tmp_path / "f.toml", "design")
    (tmp_path / "f.toml").write_bytes(b"#" * (MAX_TOML_BYTES + 1))
    with pytest.raises(StretchError, match="larger than"):
        read_toml(tmp_path / "f.toml", "design")


def test_paths_through_a_descriptor_are_named_in_texts(tmp_path):
    (tmp_path / "f").write_text("")
    with open_regular(tmp_path / "f") as stream:
        assert readable(f"/proc/{os.getpid()}/fd/{stream.fileno()} is bad") == f"{tmp_path / 'f'} is bad"
    assert readable("/proc/1/fd/99999999 is bad") == "/proc/1/fd/99999999 is bad"


def test_file_is_written_whole_or_not_at_all(tmp_path):
    write_whole(tmp_path / "f", b"1", "thing")
    write_whole(tmp_path / "f", b"2", "thing")
    assert (tmp_path / "f").read_bytes() == b"2"
    (tmp_path / "folder").mkdir()
    with pytest.raises(StretchError, match="cannot write the thing"):
        write_whole(tmp_path / "folder", b"3", "thing")
    with pytest.raises(StretchError, match="cannot write the thing"):
        write_whole(tmp_path / "missing" / "f", b"3", "thing")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "folder"]
