"""Ranges of int8 tensors that are learned with the weights (Esser et al. 2020, "Learned step size quantization"), against ranges that stay.

`python -m experiments.real_networks.learned_ranges measure --weights FOLDER --images FOLDER --out FILE` trains both forms of whole networks in
turns, on the CPU; `python -m experiments.real_networks.learned_ranges record FILE…` makes the rows a record.
"""

import math
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.real_networks.more_images import ALL, rounded_agreement
from experiments.real_networks.run import HELD_BACK, command_parser, keep_rows, kept_rows, opened
from experiments.records import Row, write_record

if TYPE_CHECKING:
    import torch

    from stretch.stages.rounded import RoundedModel

HERE = Path(__file__).parent
#: Side of the images, number of training images, views per step, learning rates of weights and of logarithms of scales, and warm-up share.
SIDE, IMAGES, BATCH, RATE, SCALE_RATE, RISE = 128, 300, 32, 5e-5, 3e-3, 0.1


def learn_ranges(network: "RoundedModel") -> "torch.Tensor":
    """Make the scales of a rounded network's tensors learnable; return their logarithms."""
    import torch

    from stretch.stages.rounded import INT8_RANGE

    logarithms = network.scales.log().requires_grad_()

    def branch(name: str, x: torch.Tensor) -> torch.Tensor:
        scales, zeros = logarithms.exp(), network.zeros.float()

        def rounded(tensor: str, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
            i = network._at.get((name, tensor))
            if i is None:
                return value, None
            factor = (value.numel() * INT8_RANGE[1]) ** -0.5  # factor of the gradient, equation 4
            learned = torch._fake_quantize_learnable_per_tensor_affine
            return learned(value, scales[i].reshape(1), zeros[i].reshape(1), *INT8_RANGE, factor), scales[i].detach()

        return network._branches[name].run(x, network._reads[name], rounded)

    network.branch = branch
    return logarithms


def trained(name: str, learned: bool, steps: int, seed: int, weights: Path, images: Path) -> Row:
    """Train a whole network with int8 rounding to reproduce its float32 outputs."""
    import torch

    from stretch.stages.rounded import RoundedModel
    from stretch.transform.build import build
    from stretch.transform.calibrate import undivided_design
    from stretch.transform.refine import Views, relative_error

    network, _, divided = opened(ALL[name], weights, images, IMAGES, shape=(1, 3, SIDE, SIDE))
    original = network.captured.module.eval()
    fitted = torch.cat(divided.fitted)
    model = build(network.captured, undivided_design(network.captured)).eval()
    rounded = RoundedModel(model, {"cpu": "int8"}, fitted[: 2 * BATCH].split(BATCH)).eval()
    row: Row = {"network": name, "learned": learned, "seed": seed, "steps": steps}
    row |= {f"start_{key}": value for key, value in rounded_agreement(network.captured, rounded, divided.held_back).items()}
    groups = [{"params": list(model.parameters()), "lr": RATE}]
    groups += [{"params": [learn_ranges(rounded)], "lr": SCALE_RATE}] if learned else []
    adam, views = torch.optim.Adam(groups), Views(fitted, seed)
    rate = torch.optim.lr_scheduler.LambdaLR(
        adam, lambda step: min((step + 1) / (RISE * steps), (1 + math.cos(math.pi * step / steps)) / 2)
    )
    for _ in range(steps):
        x = views.draw(BATCH)
        with torch.no_grad():
            expected = original(x)
        adam.zero_grad()
        relative_error(rounded(x), expected).backward()
        adam.step()
        rate.step()
    return row | rounded_agreement(network.captured, rounded, divided.held_back)


def main() -> None:
    """Measure, or write a record."""
    parser = command_parser(__doc__)
    parser.add_argument("--networks", nargs="*", default=["mobilenet_v2", "efficientnet_lite0"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.what == "measure":
        cases = product(range(options.seeds), options.networks, (False, True))
        rows = (trained(name, learned, options.steps, seed, options.weights, options.images) for seed, name, learned in cases)
        keep_rows(rows, options.out)
        return
    kept, where = kept_rows(options.files)
    write_record(
        HERE / "results" / "learned_ranges.json",
        {"trainings": sorted(kept, key=lambda row: (row["network"], row["seed"], row["learned"]))},
        source="measured",
        command="python -m experiments.real_networks.learned_ranges measure",
        runs=1,
        notes=[
            f"Whole networks of torchvision and timm as int8 rounds them, at {SIDE} x {SIDE}, trained on views of {IMAGES} photographs, {BATCH} a step, to give what the original gives. Compared with the original on {HELD_BACK} others, before (`start_`) and after; 95 % intervals.",
            f"`learned`: logarithms of the scales of tensors are trained too, at a rate of {SCALE_RATE:g}; weights at {RATE:g} in both forms.",
        ],
        **where,
    )


if __name__ == "__main__":
    main()
