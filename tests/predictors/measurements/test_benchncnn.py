from pathlib import Path

import pytest

from predictors.errors import StretchError
from predictors.measurements.benchncnn import NAMES, read_benchncnn

OUTPUT = """loop_count = 8
num_threads = 1
powersave = 2
gpu_device = -1
cooling_down = 1
          squeezenet  min =    2.61  max =    2.75  avg =    2.66
     squeezenet_int8  min =    2.10  max =    2.30  avg =    2.20
            resnet18  min =    9.10  max =    9.90  avg =    9.40
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "bench.txt"
    path.write_text(text)
    return path


def test_networks_their_precision_and_the_settings_are_read(tmp_path):
    result, settings = read_benchncnn(written(tmp_path, OUTPUT))
    assert [(item.name, item.precision, item.avg_ms) for item in result] == [
        ("squeezenet", "fp16", 2.66),
        ("squeezenet", "int8", 2.20),
        ("resnet18", "fp16", 9.40),
    ]
    assert settings == {"loop_count": 8, "num_threads": 1, "powersave": 2, "gpu_device": -1}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max =    9.90", "max =    9.00", "line 8: min 9.1, avg 9.4 and max 9 ms"),
        ("min =    9.10", "min =   -9.10", "line 8: min -9.1"),
        ("avg =    9.40", "avg =     nan", "line 8: min 9.1, avg nan"),
        ("avg =    9.40", "avg =    9,40", "has no line"),
        ("avg =    9.40", "avg =    fast", "line 8: `fast` is not a time"),
        ("            resnet18", "     squeezenet_int8", "line 8: `squeezenet_int8` is there twice"),
    ],
)
def test_lines_that_cannot_be_true_are_refused(tmp_path, old, new, message):
    text = OUTPUT.replace(old, new)
    if message == "has no line":
        text = text.splitlines()[-1]
    with pytest.raises(StretchError, match=message):
        read_benchncnn(written(tmp_path, text))


def test_text_of_something_else_is_refused(tmp_path):
    with pytest.raises(StretchError, match="has no line of a network"):
        read_benchncnn(written(tmp_path, "hello\n"))


@pytest.mark.torch
def test_every_network_it_is_known_to_measure_is_one_of_ours():
    import torchvision

    assert set(NAMES.values()) <= set(torchvision.models.list_models())
