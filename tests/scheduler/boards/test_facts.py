import platform

import msgspec
import pytest

from predictors.errors import MissingBackendError, StretchError
from scheduler.boards.line import facts
from scheduler.boards.facts import SERIES, Facts, check_facts, read_facts

HERE = read_facts("here", facts())


def test_facts_of_this_machine_are_those_that_python_tells():
    assert (HERE.machine, HERE.python, HERE.bits) == (platform.machine(), platform.python_version(), 64)
    assert HERE.glibc == platform.libc_ver()[1]
    assert HERE.series == SERIES


def test_this_machine_would_do_as_a_board():
    check_facts("here", HERE)


@pytest.mark.parametrize("machine", ["arm64", "aarch64", "x86_64", "AMD64"])
def test_architectures_are_known_by_all_their_names(machine):
    check_facts("board", msgspec.structs.replace(HERE, machine=machine))


@pytest.mark.parametrize(
    ("change", "told"),
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
def test_board_without_packages_is_refused_with_what_it_lacks(change, told):
    with pytest.raises(MissingBackendError, match=told) as refused:
        check_facts("board", msgspec.structs.replace(HERE, **change))
    assert refused.value.hint


@pytest.mark.parametrize("told", [None, [], {}, {**facts(), "cores": "many"}])
def test_what_is_no_facts_is_one_sentence(told):
    with pytest.raises(StretchError, match="what board says of itself cannot be read"):
        read_facts("board", told)


def test_facts_in_words_name_what_packages_depend_on():
    known = Facts(system="Linux", machine="arm64", bits=64, implementation="cpython", python="3.11.2", glibc="2.36", cores=1)
    assert str(known) == "aarch64, Python 3.11.2, glibc 2.36, 1 core"
