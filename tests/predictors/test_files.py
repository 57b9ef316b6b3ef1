"""Reading files and refusing faulty ones; facts of the operating system and its memory."""

import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from predictors import system
from predictors.errors import ON_BOARD, StretchError, UnknownNameError, UsageError, install_line
from predictors.faults import find_fault
from predictors.files import MAX_TOML_BYTES, cache_folder, check_folder, open_regular, read_bytes, read_toml, readable, write_whole
from predictors.shapes import integer, ints, number, rank4
from scheduler.cores import available_cores


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder", "missing", "nul"])
def test_path_that_is_no_regular_file_is_refused_without_waiting(tmp_path, kind):
    path = tmp_path / ("a\0b" if kind == "nul" else "f")
    with socket.socket(socket.AF_UNIX) as end:
        make = {"pipe": os.mkfifo, "device": lambda path: os.symlink("/dev/zero", path), "folder": os.mkdir, "socket": end.bind}
        make.get(kind, lambda path: None)(str(path))
        with pytest.raises(StretchError, match="cannot read"):
            read_bytes(path, "thing", 5)


@pytest.mark.linux
def test_cache_of_a_user_without_an_account_is_one_that_cannot_be_written(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert cache_folder("opencl") == Path("/.cache/nn-stretch/opencl")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_read_only_folder_of_an_output_is_refused():
    process = os.fork()
    if process == 0:
        os.setresuid(65534, 65534, 65534)
        try:
            check_folder(Path("/page.html"), "--html")
        except UsageError as error:
            os._exit(int("is read-only" not in error.message))
        os._exit(2)
    assert os.waitpid(process, 0)[1] == 0


def test_regular_file_is_read_up_to_its_limit_and_named_in_errors(tmp_path):
    (tmp_path / "f").write_bytes(b"12345")
    assert read_bytes(tmp_path / "f", "thing", 5) == b"12345"
    with pytest.raises(StretchError, match="larger than 4 bytes"):
        read_bytes(tmp_path / "f", "thing", 4)
    with open_regular(tmp_path / "f") as stream:
        assert readable(f"/proc/{os.getpid()}/fd/{stream.fileno()} is bad") == f"{tmp_path / 'f'} is bad"
    assert readable("/proc/1/fd/99999999 is bad") == "/proc/1/fd/99999999 is bad"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = " + "[" * 100_000, "nested deeper"),
        ("a = " + "[" * 40 + "]" * 40, "nested deeper"),
        ("[" + ".".join("a" * 50) + "]", "nested deeper"),
        (".".join("a" * 100_000) + " = 1", "dots"),
        ("[" + ".".join("a" * 100_000) + "]", "dots"),
        ("[a]\nb = [1.0, inf]", r"`a\.b\[1\]` is inf"),
        ("seed = 9223372036854775808", "`seed` is a number of more than 63 bits"),
        ("seed = -99999999999999999999999999", "63 bits"),
        ("seed = " + "9" * 10_000, "digits"),
        ("a = ", "Invalid"),
        (b"a = '\xff'", "UTF-8"),
        (b"#" * (MAX_TOML_BYTES + 1), "larger than"),
    ],
    ids=lambda text: str(text[:20]),
)
def test_invalid_toml_is_refused_in_one_sentence(tmp_path, text, problem):
    (tmp_path / "f.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(StretchError, match=problem) as caught:
        read_toml(tmp_path / "f.toml", "design", "look at an example")
    assert "design" in caught.value.message
    assert isinstance(text, bytes) or caught.value.hint == "look at an example"


def test_file_is_written_whole_or_not_at_all(tmp_path):
    write_whole(tmp_path / "f", b"1", "thing")
    write_whole(tmp_path / "f", b"2", "thing")
    assert (tmp_path / "f").read_bytes() == b"2"
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "missing/f", "pipe"):
        with pytest.raises(StretchError, match="cannot write"):
            write_whole(tmp_path / name, b"3", "thing")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "folder", "pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_hint_cuts_a_long_list_reports_an_empty_one_and_names_the_boards_flag_on_a_board(monkeypatch):
    names = [f"model{i:02}" for i in range(20)]
    assert UnknownNameError.among("model", "zzz", names).hint == "known: " + ", ".join(names[:12]) + ", …"
    assert UnknownNameError.among("delegate", "cpu", []).hint == "no delegate is registered"
    monkeypatch.setenv(ON_BOARD, "1")
    assert "--extras opencl" in install_line("opencl")


class Leaf(msgspec.Struct, forbid_unknown_fields=True):
    value: Annotated[float, msgspec.Meta(gt=0)]
    kind: Literal["conv", "linear"] = "conv"


class Tree(msgspec.Struct, forbid_unknown_fields=True):
    leaf: Leaf
    named: dict[str, Leaf] = {}
    chosen: dict[Literal["fp32", "int8"], int] = {}
    many: tuple[Leaf, ...] = ()
    pair: tuple[int, int] = (1, 2)
    maybe: Leaf | None = None


GOOD = {"value": 1.5}


@pytest.mark.parametrize(
    ("raw", "path", "problem", "hint"),
    [
        ({"lief": GOOD}, "lief", "unknown key", "`leaf`"),
        ({}, "", "lacks the key `leaf`", None),
        ({"leaf": {"valeu": 1}}, "leaf.valeu", "unknown key", "`value`"),
        ({"leaf": {"value": -1}}, "leaf.value", "expected `float` > 0", None),
        ({"leaf": {"value": 1, "kind": "convv"}}, "leaf.kind", "invalid enum value", "`conv`"),
        ({"leaf": GOOD, "named": {"gpu": {"value": "x"}}}, "named.gpu.value", "expected `float`, got `str`", None),
        ({"leaf": GOOD, "named": {"gpu": {}}}, "named.gpu", "lacks the key `value`", None),
        ({"leaf": GOOD, "named": {"a b": {"vlaue": 1}}}, "named.a b.vlaue", "unknown key", "`value`"),
        ({"leaf": GOOD, "chosen": {"fp33": 1}}, "chosen.fp33", "unknown key", "`fp32`"),
        ({"leaf": GOOD, "chosen": {"zzz": 1}}, "chosen.zzz", "unknown key", "fp32, int8"),
        ({"leaf": GOOD, "chosen": {"fp32": "x"}}, "chosen.fp32", "expected `int`", None),
        ({"leaf": GOOD, "many": [GOOD, {"value": 0}]}, "many[1].value", "expected `float` > 0", None),
        ({"leaf": GOOD, "pair": [1, "x"]}, "pair[1]", "expected `int`", None),
        ({"leaf": GOOD, "maybe": {"value": 0}}, "maybe.value", "expected `float` > 0", None),
        ({"leaf": GOOD, "maybe": 5}, "maybe", "expected `object", None),
        ({"leaf": 5}, "leaf", "expected `object`, got `int`", None),
        ([], "", "expected `object`, got `array`", None),
    ],
)
def test_error_has_path_fault_and_nearest_name(raw, path, problem, hint):
    sentence, suggested = find_fault(raw, Tree)
    assert sentence.startswith(f"`{path}` " if path else "it ")
    assert problem in sentence
    assert suggested is None if hint is None else hint in suggested
    assert "[...]" not in sentence


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (lambda value: ints({"a": value}, "a"), 3, "not a list of numbers"),
        (lambda value: integer({"a": value}, "a"), (3,), "not a whole number"),
        (lambda value: number({"a": value}, "a"), "x", "not a number"),
        (rank4, (1, 2), "N×C×H×W"),
    ],
)
def test_attribute_of_the_wrong_type_and_tensor_of_another_rank_are_refused(read, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        read(value)


@pytest.mark.skipif(not system.PLAIN, reason="needs NN_STRETCH_SYSTEM=plain")
def test_without_linux_its_functions_are_missing_and_all_cores_are_available():
    assert system.fcntl is system.resource is system.affinity() is system.load_average() is None
    assert available_cores() == tuple(range(os.cpu_count()))


#: Prints the page faults of allocating and freeing large arrays before, in and after the block.
COUNT = """
import resource
import numpy as np
from predictors.system import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        np.ones(8 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

usual = faults()
with keep_freed_memory():
    np.ones(8 << 20)
    kept = faults()
print(usual, kept, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or system.PLAIN, reason="other C libraries have no settings for freed memory")
def test_freed_memory_is_reused_only_in_the_block():
    printed = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True).stdout
    before, kept, after = map(int, printed.split())
    assert kept < before / 4 < before / 2 < after
