"""LiteRT asked about foreign files; the line in which its delegate says what it replaces is the witness."""

import re

import pytest

from predictors.errors import UnknownNameError
from scheduler.explain.foreign import explain_file
from tests.scheduler.explain.files import CHAINS

pytest.importorskip("ai_edge_litert")

_REPLACES = re.compile(r"Replacing (\d+) out of (\d+) node\(s\) with delegate \(TfLiteXNNPackDelegate\) node, yielding (\d+) partitions")

#: First operator that XNNPACK leaves, and what stops it; None where it takes all.
FIRST = {
    "add": None,
    "add_mul": None,
    "whole_numbers": ("ADD_0", "type int64"),
    "divided": ("FLOOR_DIV_1", "operator FLOOR_DIV"),
    "power": ("POW_0", "operator POW"),
    "own": ("Swirl_1", "operator Swirl"),
    "reversed": ("SIGN_2", "operator SIGN"),
    "rounded": None,
    "two_parts": ("SIGN_2", "operator SIGN"),
    "floors": ("FLOOR_DIV_0", "operator FLOOR_DIV"),
}


@pytest.mark.parametrize("name", CHAINS)
def test_first_obstacle_and_counts_are_those_of_its_own_log(foreign, name):
    found = explain_file(foreign[name], "litert")
    first = (found.obstacles[0].operator, found.obstacles[0].cause) if found.obstacles else None
    assert first == FIRST[name]
    if name == "own":
        assert "Swirl" in found.obstacles[0].words
        return
    taken, partitions = sum(op.taken is True for op in found.operators), found.partitions
    said = _REPLACES.search(found.log)
    if said is None:
        assert (taken, partitions) == (0, 0)
    else:
        assert tuple(map(int, said.groups())) == (taken, len(found.operators), partitions)


def test_tensors_between_the_parts_are_counted(foreign):
    assert explain_file(foreign["two_parts"], "litert").copies == 2


def test_other_devices_are_refused(foreign):
    with pytest.raises(UnknownNameError, match="device of litert `gpu`"):
        explain_file(foreign["add"], "litert", "gpu")
