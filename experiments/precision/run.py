"""What int8 costs, on delegates that really compute in int8: `python -m experiments.precision.run resnet50|trained`.

``resnet50`` compares every subgraph of a running session with torch;
``trained`` counts how often small trained networks still give torch's class.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.records import Value, write_record

HERE = Path(__file__).parent
TRAINED = HERE.parent / "trained_network"

Array = NDArray[Any]


def cosine(a: Array, b: Array) -> float:
    """Cosine of the angle between two tensors."""
    x, y = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def torch_tensors(model: Any, x: Array) -> tuple[dict[str, Array], Array]:
    """What each branch of a `BranchedModel` writes for `x`, by subgraph, and the output."""
    import torch

    from stretch.transform.model import Branch

    result: dict[str, Array] = {}
    hooks = []
    for path, module in model.named_modules():
        if isinstance(module, Branch):
            # A path such as ``s1.on_cpu``; subgraphs are called ``s1.cpu``.
            segment, _, name = path.removeprefix("segments.").rpartition(".")
            key = f"{segment}.{name.removeprefix('on_')}"
            hooks.append(module.register_forward_hook(lambda m, i, out, key=key: result.__setitem__(key, out.numpy().copy())))
    with torch.no_grad():
        y = model(torch.from_numpy(x)).numpy()
    for hook in hooks:
        hook.remove()
    return result, y


def write_bundles(folder: Path, original: Any, model: Any, images: Sequence[Array], source: str) -> Path:
    """A bundle of a model, and the same with its dsp in int8; the path of the latter.

    Args:
        folder: Where both go.
        original: The captured original.
        model: The branched model.
        images: Calibration images.
        source: Where they came from.
    """
    from scheduler.bundle.load import load_bundle
    from stretch.export.bundle import BundleFacts, export_bundle
    from stretch.export.precision import export_precision

    facts = BundleFacts("mi9", False, "given", precision={"cpu": "fp32", "gpu": "fp32", "dsp": "int8"})
    export_bundle(folder / "float", original, model, None, facts, "0.1.0", controls=False)
    export_precision(load_bundle(folder / "float"), folder / "int8", {"dsp": "int8"}, images, source)
    return folder / "int8"


def with_tflite(bundle: Path, out: Path, images: Sequence[Array], source: str) -> Path:
    """The bundle again with a TFLite file beside its ONNX files, same precisions."""
    from scheduler.bundle.load import load_bundle
    from stretch.export.tflite.bundle import export_tflite

    export_tflite(load_bundle(bundle), out, images, source)
    return out


def resnet50(images: int, runs: int) -> tuple[dict[str, list[dict[str, Value]]], list[str]]:
    """Cosine of every subgraph with torch while CPU, GPU stand-in and DSP run side by side."""
    from scheduler.bundle.load import load_bundle
    from scheduler.runtime.session import Session
    from stretch.api import branch
    from stretch.export.precision import export_precision
    from stretch.planning.config import PlanConfig
    from stretch.quantize.images import synthetic_images

    shape = (1, 3, 224, 224)
    calibration, tests = synthetic_images(shape, images), synthetic_images(shape, runs, seed=7)
    rows: dict[str, dict[str, Value]] = {}
    overlaps: list[dict[str, Value]] = []
    with tempfile.TemporaryDirectory() as scratch:
        config = PlanConfig(processors=("cpu", "gpu", "dsp"))
        built = branch("resnet50", "mi9", config=config, weights="none", out=Path(scratch) / "float", controls=False)
        export_precision(load_bundle(Path(scratch) / "float"), Path(scratch) / "int8", {"dsp": "int8"}, calibration, "synthetic")
        lite = with_tflite(Path(scratch) / "int8", Path(scratch) / "lite", calibration, "synthetic")
        bundle = load_bundle(lite)
        for way, mapping in (("QNN (HTP simulator)", {}), ("LiteRT", {"cpu": "litert0", "gpu": "litert1", "dsp": "litert1"})):
            with Session(bundle, mapping) as session:
                for x in tests:
                    tensors = session.tensors(x)
                    y = tensors[bundle.manifest.output]
                    expected, output = torch_tensors(built.model, x)
                    for name, subgraph in session.plan.subgraphs.items():
                        row = rows.setdefault(
                            name,
                            {
                                "subgraph": name,
                                "precision": next(s.precision for s in bundle.manifest.subgraphs if s.name == name),
                            },
                        )
                        value = cosine(tensors[subgraph.outputs[0]], expected[name])
                        column = f"1 − least cosine, {way}"
                        row[column] = round(max(1 - value, float(row.get(column) or 0.0)), 7)
                    trace = session.trace
                overlaps.append(
                    {
                        "delegate of the dsp": way,
                        "makespan ms": round(trace.makespan_ms, 1),
                        "cpu beside dsp ms": round(trace.overlap_ms("cpu", "dsp"), 1),
                        "cpu beside gpu ms": round(trace.overlap_ms("cpu", "gpu"), 1),
                        "gpu beside dsp ms": round(trace.overlap_ms("gpu", "dsp"), 1),
                        "1 − cosine of the output": round(1 - cosine(y, output), 7),
                    }
                )
    notes = [
        "resnet50 planned for mi9 on cpu, gpu and dsp, random weights; each subgraph reads what the running session gave it, "
        "rounding of the segments before included, and is compared with torch's tensor for the same image. "
        "The HTP simulator's times mean nothing; that branches ran side by side does."
    ]
    return {"subgraphs": list(rows.values()), "overlap": overlaps}, notes


def trained(data: Path, count: int, calibration: int) -> tuple[dict[str, list[dict[str, Value]]], list[str]]:
    """How often int8 branches leave the class as torch has it, on real images."""
    import torch

    from scheduler.bundle.load import load_bundle
    from scheduler.runtime.session import Session

    arrays = np.load(data, allow_pickle=False)
    rows: list[dict[str, Value]] = []
    for name in ("cpu_dsp", "cpu_gpu_dsp"):
        original, model, mean, deviation = load_trained(name)

        def ready(images: Array, mean: Array = mean, deviation: Array = deviation) -> Array:
            return np.ascontiguousarray(((images - mean) / deviation).astype(np.float32).transpose(0, 3, 1, 2))

        train = ready(arrays["train_images"][:calibration])
        tests, labels = ready(arrays["test_images"][:count]), arrays["test_labels"][:count]
        with torch.no_grad():
            expected = model(torch.from_numpy(tests)).argmax(1).numpy()
        with tempfile.TemporaryDirectory() as scratch:
            images = [image[None] for image in train]
            int8 = write_bundles(Path(scratch), original, model, images, "CIFAR-10 training images")
            lite = with_tflite(int8, Path(scratch) / "lite", images, "CIFAR-10 training images")
            bundle = load_bundle(lite)
            others = {p: f"litert{i % 2}" for i, p in enumerate(dict.fromkeys(s.processor for s in bundle.manifest.subgraphs))}
            for way, mapping in (("dsp on QNN (HTP simulator), others on ONNX Runtime", {}), ("all on LiteRT signatures", others)):
                with Session(bundle, mapping) as session:
                    got = np.array([int(session(x[None]).argmax()) for x in tests])
                rows.append(
                    {
                        "network": name,
                        "delegates": way,
                        "images": count,
                        "same class as torch %": round(100 * float(np.mean(got == expected)), 2),
                        "top-1 % torch": round(100 * float(np.mean(expected == labels)), 2),
                        "top-1 % int8": round(100 * float(np.mean(got == labels)), 2),
                    }
                )
    notes = [
        f"branched ResNet-20 networks of experiments/trained_network; cpu and gpu in fp32, dsp in int8, calibrated on {calibration} training images."
    ]
    return {"agreement": rows}, notes


def load_trained(name: str) -> tuple[Any, Any, Array, Array]:
    """The captured original, the trained branched model, and mean and deviation of its input."""
    import tomllib

    from safetensors.torch import load_file

    from stretch.capture import capture
    from stretch.models import load_model
    from stretch.planning.design.branch_design import load_draft
    from stretch.planning.design.scale import resolve_design
    from stretch.transform import BranchedModel

    folder = TRAINED / name
    loaded = load_model("resnet20_cifar10", weights="none")
    captured = capture(loaded.module, loaded.input_shape, loaded.name)
    design = resolve_design(load_draft(folder / "design.toml"), captured.graph, "mi9", {"cpu": 8, "gpu": 8, "dsp": 8}, "cpu")
    model = BranchedModel(captured.graph, design)
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    described: Mapping[str, Any] = tomllib.loads((folder / "input.toml").read_text())
    return captured, model.eval(), np.array(described["mean"], np.float32), np.array(described["deviation"], np.float32)


def main(words: list[str] | None = None) -> int:
    """Measure one of the two and write its record."""
    parser = argparse.ArgumentParser(prog="python -m experiments.precision.run", description=__doc__)
    parser.add_argument("what", choices=("resnet50", "trained"))
    parser.add_argument("--data", type=Path, help="CIFAR-10 as experiments.cifar_accuracy.prepare writes it, for `trained`")
    parser.add_argument("--count", type=int, help="images that are compared (4 or 1000)")
    parser.add_argument("--calibration", type=int, default=64, help="images that ranges are taken from")
    options = parser.parse_args(words)
    load = os.getloadavg()[0]
    if options.what == "resnet50":
        count = options.count or 4
        tables, notes = resnet50(min(options.calibration, 16), count)
    else:
        if options.data is None:
            parser.error("`trained` needs --data")
        count = options.count or 1000
        tables, notes = trained(options.data, count, options.calibration)
    write_record(
        HERE / "results" / f"{options.what}.json",
        tables,
        source="measured",
        command=f"python -m experiments.precision.run {options.what}",
        runs=count,
        load=load,
        notes=notes,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
