"""What was planned by this code is not planned again."""

import msgspec
import pytest

pytest.importorskip("torch")

from experiments.records import this_commit
from experiments.simulated_speedup.run import Part, part_of


def test_rows_of_another_commit_are_not_taken_up(tmp_path):
    path = tmp_path / "part.json"
    path.write_bytes(msgspec.json.encode(Part("0" * 40, {"a": {"case": "a"}})))
    assert part_of(path).rows == {}


def test_rows_of_this_commit_are_taken_up_where_nothing_is_changed(tmp_path):
    found, path = this_commit(), tmp_path / "part.json"
    if found is None or found.dirty:
        pytest.skip("files differ from the commit")
    path.write_bytes(msgspec.json.encode(Part(found.hash, {"a": {"case": "a"}})))
    assert list(part_of(path).rows) == ["a"]
