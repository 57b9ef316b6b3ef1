from pathlib import Path

import pytest

from predictors.errors import StretchError
from predictors.measurements.litert import read_op_profile

HEADER = "node type, first, avg_ms, %, cdf%, mem KB, times called, name"
PROFILE = f"""Number of nodes executed: 1
============================== Run Order ==============================
{HEADER}
ModifyGraphWithDelegate, 1.5, 1.5, 100%, 100%, 0, 1, ModifyGraphWithDelegate/0

============================== Summary by node type ==============================
[Node type], count
============================== Run Order ==============================
{HEADER}
CONV_2D, 1.2, 1.25, 50%, 50%, 0, 1, [conv1]:0
DEPTHWISE_CONV_2D, 0.7, 0.75, 30%, 80%, 0, 1, [conv2]:1
SOFTMAX, 0.1, 0.25, 10%, 90%, 0, 2, [prob]:2

============================== Top by Computation Time ==============================
{HEADER}
CONV_2D, 1.2, 1.25, 50%, 50%, 0, 1, [conv1]:0
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "profile.csv"
    path.write_text(text)
    return path


def test_operators_that_run_are_read_in_order_and_those_that_prepare_are_not(tmp_path):
    op_profile = read_op_profile(written(tmp_path, PROFILE))
    assert [(item.kind, item.name) for item in op_profile] == [
        ("CONV_2D", "[conv1]:0"),
        ("DEPTHWISE_CONV_2D", "[conv2]:1"),
        ("SOFTMAX", "[prob]:2"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Run Order", "Run", "no block `Run Order`"),
        ("avg_ms", "avg_us", "line 9: the column `avg_ms` is missing"),
        ("0.75, 30%", "fast, 30%", "line 11: `avg_ms` is `fast`, not a number"),
        ("0.75, 30%", "nan, 30%", "line 11: `avg_ms` is nan"),
        ("0.75, 30%", "-1, 30%", "line 11: `avg_ms` is -1"),
        ("0, 1, [conv2]:1", "0, [conv2]:1", "line 11: it has 7 fields, the header 8"),
    ],
)
def test_what_is_no_profile_is_refused_with_its_line(tmp_path, old, new, message):
    with pytest.raises(StretchError, match="(?s)" + message.replace("[", r"\[")):
        read_op_profile(written(tmp_path, PROFILE.replace(old, new)))


def test_a_block_without_operators_is_refused(tmp_path):
    with pytest.raises(StretchError, match="lists no operator"):
        read_op_profile(written(tmp_path, f"===== Run Order =====\n{HEADER}\n"))


def test_what_is_not_text_is_refused(tmp_path):
    path = tmp_path / "profile.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StretchError, match="not text"):
        read_op_profile(path)
