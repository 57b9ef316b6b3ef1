import os

import pytest

from scheduler.delegates.openvino import OpenVinoDelegate
from scheduler.runtime.session import Session

if problem := OpenVinoDelegate.unavailable():
    pytest.skip(problem, allow_module_level=True)


@pytest.mark.torch
def test_bands_and_paths_on_it_beside_onnx_runtime_are_the_original(tmp_path):
    pytest.importorskip("torch")
    from tests.stretch.exact_bundles import images, made, near, original

    x = images(1)[0]
    with Session(made(tmp_path / "exact"), {"gpu": f"openvino{sorted(os.sched_getaffinity(0))[-1]}"}) as session:
        assert {p.delegate for p in session.placements.values()} == {"cpu", "openvino"}
        assert near(session(x), original(x))
        assert near(session.submit(x).result(60), original(x))
