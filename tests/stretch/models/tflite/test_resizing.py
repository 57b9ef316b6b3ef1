import numpy as np
import pytest

from predictors.errors import StretchError
from stretch.models.tflite import read_module
from tests.stretch.models.onnx.graphs import functions
from tests.stretch.models.tflite.files import agrees, op, write

pytestmark = pytest.mark.torch
pytest.importorskip("ai_edge_litert")

WAYS = [{}, {"align_corners": True}, {"half_pixel_centers": True}]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("size", [(12, 10), (3, 2), (7, 9), (6, 5), (1, 1), (9, 4)])
@pytest.mark.parametrize("code", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
def test_pixels_are_those_of_the_runtime(tmp_path, way, size, code):
    table = "ResizeBilinearOptions" if code == "RESIZE_BILINEAR" else "ResizeNearestNeighborOptions"
    found = agrees(write(tmp_path / "m.tflite", op(code, ["x", "s"], table=table, **way), stored={"s": np.array(size, np.int32)}))
    if (code == "RESIZE_BILINEAR" and way) or (size == (12, 10) and not way.get("align_corners") and code == "RESIZE_NEAREST_NEIGHBOR"):
        assert functions(found) == ["interpolate"]


@pytest.mark.parametrize("size", [(0, 3), (3,), (1 << 20, 1)])
def test_size_that_is_none_is_refused(tmp_path, size):
    path = write(
        tmp_path / "m.tflite", op("RESIZE_BILINEAR", ["x", "s"], table="ResizeBilinearOptions"), stored={"s": np.array(size, np.int32)}
    )
    with pytest.raises(StretchError, match="it resizes to"):
        read_module(path)
