import msgspec
import pytest

from predictors.errors import MissingBackendError, StretchError
from scheduler.boards.agent import facts
from scheduler.boards.facts import check_facts, read_facts

HERE = read_facts("here", facts())


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
