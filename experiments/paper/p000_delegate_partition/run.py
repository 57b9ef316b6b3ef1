"""What our OpenCL delegate takes of networks that torch exported (paper 000, section 3.1).

`python -m experiments.paper.p000_delegate_partition.run` exports them to ONNX and asks with `stretch explain --runtime opencl`.
"""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from experiments.command import stretch
from experiments.records import ROOT, Row, write_record
from predictors.errors import StretchError
from stretch.environment import version

HERE = Path(__file__).parent
#: Networks of chains of convolutions, with squeeze-excite, with groups, and two of tokens, whose operators no kernel computes.
NETWORKS = (
    "resnet50",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "efficientnet_b0",
    "regnet_x_1_6gf",
    "shufflenet_v2_x1_0",
    "densenet121",
    "convnext_tiny",
    "vit_b_16",
)
INPUT = (1, 3, 224, 224)


def exported(name: str, work: Path) -> Path:
    """The network as ONNX, by torch's exporter, weights as torchvision initialises them.

    Args:
        name: Of a model of torchvision.
        work: Folder of the files.
    """
    path = work / f"{name}.onnx"
    if not path.exists():
        import torch
        import torchvision

        torch.manual_seed(0)
        model = torchvision.models.get_model(name, weights=None).eval()
        partial = work / f".{name}.onnx"
        torch.onnx.export(model, (torch.zeros(INPUT),), partial, dynamo=True, external_data=False, verbose=False)
        partial.replace(path)
    return path


def left(path: Path) -> int | None:
    """Operators that are left when the delegate has folded, merged and fused what it can; None for a file that it does not read.

    Args:
        path: The network.
    """
    from scheduler.delegates.opencl.delegate import OpenCLDelegate

    try:
        return len(OpenCLDelegate().prepare(path).nodes)
    except StretchError:
        return None


def row(name: str, path: Path, answer: dict[str, Any]) -> Row:
    """Operators of a network by what becomes of them.

    Args:
        name: Its name.
        path: Its file.
        answer: What `stretch explain` prints.
    """
    operators = answer["operators"]
    off = [operator for operator in operators if operator["taken"] is False]
    common = Counter(item["op"] for item in off).most_common(3)
    share = answer["share"]
    return {
        "network": name,
        "operators": len(operators),
        "left after fusion": left(path),
        "on the GPU": sum(bool(operator["taken"]) for operator in operators),
        "on the CPU": len(off),
        "parts on the GPU": answer["partitions"],
        "crossing tensors": answer["copies"],
        "multiply-accumulates on the GPU %": None if share is None else round(100 * share, 1),
        "left to the CPU": ", ".join(f"{count} {op}" for op, count in common) or None,
    }


def main(words: list[str] | None = None) -> int:
    """Export, ask and write ``results/opencl.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "delegate_partition", help="folder of the exported files")
    options = parser.parse_args(words)
    options.work.mkdir(parents=True, exist_ok=True)
    load, rows = os.getloadavg()[0], []
    for name in NETWORKS:
        path = exported(name, options.work)
        rows.append(row(name, path, stretch("explain", str(path), "--runtime", "opencl")))
        sys.stderr.write(f"{rows[-1]}\n")
    write_record(
        HERE / "results" / "opencl.json",
        {"partition": rows},
        source="measured",
        command="python -m experiments.paper.p000_delegate_partition.run",
        runs=1,
        load=load,
        notes=[
            f"torchvision {version('torchvision')} exported by torch.onnx at 224×224 in the opset of its choice, asked with `stretch explain --runtime opencl`; operators are counted, nothing is timed.",
            "left after fusion: constants are folded, identities removed, padding becomes part of the operator behind it, activation and addition of a convolution's kernel; torch's exporter has folded batch norms already.",
            "A file with an operator that writes several tensors, as ShuffleNet's Split does, is refused as a whole.",
        ],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
