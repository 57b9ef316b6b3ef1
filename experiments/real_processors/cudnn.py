"""Times of cuDNN for the same networks, through PyTorch and CUDA graphs: `python -m experiments.real_processors.cudnn`."""

import argparse
import statistics
import sys
from pathlib import Path
from timeit import repeat

from experiments.real_processors.run import NETWORKS
from experiments.records import Row, write_record

HERE = Path(__file__).parent
WARM = 10
#: Whether convolutions may use TF32, and whether everything is fp16 with channels last, by column.
MODES = {"fp32": (False, False), "fp32 with TF32": (True, False), "fp16": (False, True)}


def median_ms(name: str, side: int, tf32: bool, half: bool, runs: int) -> float:
    """Return the median time of a synchronised inference in ms, with its input already on the GPU."""
    import torch

    from stretch.network.models.load import load_model

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    dtype, layout = (torch.float16, torch.channels_last) if half else (torch.float32, torch.contiguous_format)
    network = load_model(name, weights="none", trust_code=True).module.eval().to("cuda", dtype, memory_format=layout)
    x = torch.randn(1, 3, side, side, device="cuda", dtype=dtype).to(memory_format=layout)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.inference_mode():
        # trials and first allocations must not be part of the graph
        with torch.cuda.stream(stream):
            for _ in range(3):
                network(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            network(x)

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return 1e3 * statistics.median(repeat(replay, number=1, repeat=WARM + runs)[WARM:])


def main() -> int:
    """Measure every network, and write the record."""
    import torch

    parser = argparse.ArgumentParser(prog="python -m experiments.real_processors.cudnn", description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("error: this machine has no CUDA device that PyTorch can use, so cuDNN cannot be timed here\n")
        return 1
    rows = []
    for name, side in NETWORKS:
        row: Row = {"network, input": f"{name.rpartition(':')[2]}, {side}"}
        rows.append(row | {f"{mode} ms": round(median_ms(name, side, *how, options.runs), 3) for mode, how in MODES.items()})
        sys.stderr.write(f"{rows[-1]}\n")
    facts = f"GPU: {torch.cuda.get_device_name()}, cuDNN {torch.backends.cudnn.version()}, its fastest algorithms."
    write_record(
        HERE / "results" / "cudnn.json",
        {"cudnn": rows},
        source="measured",
        command="python -m experiments.real_processors.cudnn",
        runs=options.runs,
        interleaved=False,
        notes=[f"{facts} Batch 1, random weights, one CUDA graph an inference, no copies; fp16 with channels last."],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
