"""Do trained networks give the same class in half precision on OpenCL? `python -m experiments.precision.opencl --data cifar.npz`."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from experiments.precision.run import HERE, Array, load_trained
from experiments.records import Row, write_record

#: Name of the arithmetic → half storage, and `Options.arithmetic`.
FORMS = {
    "fp32": (False, "auto"),
    "fp16 stored, computed in float": (True, "float"),
    "fp16 stored and computed": (True, "half"),
}


def agreement(data: Path, count: int) -> list[Row]:
    """How often the whole branched networks, on OpenCL alone, give torch's class."""
    import torch

    from scheduler.bundle.load import load_bundle
    from scheduler.delegates.opencl import OpenCLDelegate
    from scheduler.delegates.opencl.schedule import Options
    from stretch.export.bundle import BundleFacts, export_bundle

    arrays = np.load(data, allow_pickle=False)
    rows: list[Row] = []
    for name in ("cpu_dsp", "cpu_gpu_dsp"):
        original, model, mean, deviation = load_trained(name)
        labels = arrays["test_labels"][:count]
        tests: Array = np.ascontiguousarray(((arrays["test_images"][:count] - mean) / deviation).astype(np.float32).transpose(0, 3, 1, 2))
        with torch.no_grad():
            expected = model(torch.from_numpy(tests)).numpy()
        with tempfile.TemporaryDirectory() as scratch:
            facts = BundleFacts("mi9", False, "given", precision={"cpu": "fp32", "gpu": "fp32", "dsp": "fp32"})
            export_bundle(Path(scratch) / "bundle", original, model, None, facts, "0.1.0", controls=False)
            bundle = load_bundle(Path(scratch) / "bundle")
            file = bundle.file(bundle.manifest.whole)
            for form, (half, arithmetic) in FORMS.items():
                compiled = OpenCLDelegate(half=half, options=Options(arithmetic=arithmetic)).compile(file)
                got = np.zeros_like(expected)
                for i, image in enumerate(tests):
                    compiled.run([image[None]], [got[i : i + 1]])
                rows.append(
                    {
                        "network and arithmetic": f"{name}, {form}",
                        "images": count,
                        "same class as torch %": round(100 * float(np.mean(got.argmax(1) == expected.argmax(1))), 2),
                        "top-1 % torch": round(100 * float(np.mean(expected.argmax(1) == labels)), 2),
                        "top-1 % OpenCL": round(100 * float(np.mean(got.argmax(1) == labels)), 2),
                        "largest error over largest score": float(f"{np.abs(got - expected).max() / np.abs(expected).max():.2g}"),
                    }
                )
    return rows


def main() -> int:
    """Make the record."""
    parser = argparse.ArgumentParser(prog="python -m experiments.precision.opencl", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="CIFAR-10 as experiments.cifar_accuracy.prepare writes it")
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    write_record(
        HERE / "results" / "opencl.json",
        {"agreement": agreement(options.data, options.count)},
        source="measured",
        command="python -m experiments.precision.opencl --data cifar.npz",
        runs=options.count,
        load=load,
        notes=["branched ResNet-20 networks of experiments/trained_network, all operators on the opencl delegate through PoCL"],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
