import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from predictors.files import MAX_TOML_BYTES, open_regular, parse_toml, read_bytes, read_toml, readable, write_whole


def test_regular_file_is_read_up_to_its_limit(tmp_path):
    (tmp_path / "f").write_bytes(b"12345")
    assert read_bytes(tmp_path / "f", "thing", 5) == b"12345"
    with pytest.raises(StretchError, match="larger than 4 bytes, a thing is not"):
        read_bytes(tmp_path / "f", "thing", 4)


def test_link_to_a_regular_file_is_followed(tmp_path):
    (tmp_path / "f").write_bytes(b"1")
    (tmp_path / "link").symlink_to("f")
    assert read_bytes(tmp_path / "link", "thing", 5) == b"1"


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


def test_opened_file_is_closed_when_the_block_ends(tmp_path):
    (tmp_path / "f").write_bytes(b"1")
    with open_regular(tmp_path / "f") as stream:
        assert stream.read() == b"1"
    assert stream.closed


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


@given(st.integers(-(2**63) + 1, 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_of_64_bits_come_back_as_they_are(whole, real):
    assert parse_toml(f"a = {whole}\n[b]\nc = [{real!r}]") == {"a": whole, "b": {"c": [real]}}


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
