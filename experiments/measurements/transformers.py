"""Latencies of vision transformers on phones as shipped measurements: the source's table and our graphs of its networks.

The table is `tflite_transformer_e2e.csv` of qed-usc/mobile-ml-benchmark. DeiT and ViT are built by timm, MiT
(SegFormer's encoder with a classifier) by the package transformers; all go through torch.export, as users' do.
"""

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

from experiments.measurements.convert import graph_of, mean_times, read_table, tables_folder, write_measurements
from predictors.graph import Op, OpGraph
from predictors.measurements.tables import Latency
from predictors.operators import kind_of

PRECISION = {"float": "fp32", "quant": "int8"}

RUNTIME = "TensorFlow Lite 2.15"

#: Name in timm, side of the input and further options of each network in the table.
TIMM: dict[str, tuple[str, int, dict[str, Any]]] = {
    **{f"deit-{size}-distilled-patch16-224": (f"deit_{size}_distilled_patch16_224", 224, {}) for size in ("tiny", "small", "base")},
    "deit-base-distilled-patch16-384": ("deit_base_distilled_patch16_384", 384, {}),
    **{f"vit-base-patch{patch}-224-in21k": (f"vit_base_patch{patch}_224", 224, {"num_classes": 2}) for patch in (16, 32)},
    **{f"vit-base-patch{patch}-384": (f"vit_base_patch{patch}_384", 384, {}) for patch in (16, 32)},
}

#: Widths and depths of the four stages of each MiT (Xie et al., SegFormer, 2021, table 6).
WIDE = (64, 128, 320, 512)
MIT = {
    "mit-b0": ((32, 64, 160, 256), (2, 2, 2, 2)),
    "mit-b1": (WIDE, (2, 2, 2, 2)),
    "mit-b2": (WIDE, (3, 4, 6, 3)),
    "mit-b3": (WIDE, (3, 4, 18, 3)),
    "mit-b4": (WIDE, (3, 8, 27, 3)),
    "mit-b5": (WIDE, (3, 6, 40, 3)),
}

#: Maximum relative difference between the table's operations and twice our multiply-accumulates.
TOLERANCE = 3e-3


def latencies(rows: Iterable[dict[str, str]]) -> Iterator[Latency]:
    """Yield the times of networks."""
    for row in rows:
        for device, cores, precision, *times in mean_times(row):
            yield Latency(device, row["model"], "cpu", cores, PRECISION[precision], RUNTIME, *times)


def written_as_groups(graph: OpGraph) -> OpGraph:
    """Return the graph with its depthwise convolutions as grouped ones.

    transformers' TensorFlow class writes depthwise convolutions of MiT as `Conv2D` with groups, which the converter keeps,
    and TensorFlow Lite computes group by group.
    """

    def written(op: Op) -> Op:
        shapes = graph.input_shapes(op)
        if op.kind != "conv" or op.attrs["groups"] != shapes[0][1]:
            return op
        cin, cout, groups, taps, pixels = kind_of("conv").work(shapes, op.attrs, op.shape)[1:6]
        weights = sum(prod(shape) for shape in graph.op_weights(op).values())
        counts = {"in_channels": cin, "out_channels": cout, "groups": groups, "taps": taps, "pixels": pixels, "weights": weights}
        return Op(op.name, "opaque", op.inputs, {"shape": op.shape, "kernel": "grouped", "variant": "conv", **counts})

    return OpGraph.build(graph.name, map(written, graph.ops), graph.output)


def capture_network(name: str) -> OpGraph:
    """Return the graph of a network, without weights."""
    if name in TIMM:
        import timm

        known, side, more = TIMM[name]
        return graph_of(timm.create_model(known, **more), (1, 3, side, side), name)
    import torch
    from transformers import SegformerConfig, SegformerForImageClassification

    class Classifier(torch.nn.Module):
        """The network with a tensor as its result."""

        def __init__(self, config: SegformerConfig) -> None:
            super().__init__()
            self.segformer = SegformerForImageClassification(config)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return the class scores, batch × classes."""
            return self.segformer(x).logits

    widths, depths = MIT[name]
    config = SegformerConfig(hidden_sizes=list(widths), depths=list(depths), num_labels=1000)
    return written_as_groups(graph_of(Classifier(config), (1, 3, 224, 224), name))


def main() -> None:
    """Write the folder of measurements."""
    folder = tables_folder(__doc__, "tflite_vit_e2e.csv and LICENSE")
    rows = read_table(folder / "tflite_vit_e2e.csv")
    networks = []
    for row in rows:
        graph = capture_network(row["model"])
        if abs(2 * graph.macs / float(row["FLOPS"]) - 1) > TOLERANCE:
            raise SystemExit(f"{row['model']} has {graph.macs} multiply-accumulates, the table says {row['FLOPS']} operations")
        networks.append((row["model"], row["model"].partition("-")[0], graph))
    write_measurements("transformers", networks, list(latencies(rows)), folder / "LICENSE")


if __name__ == "__main__":
    main()
