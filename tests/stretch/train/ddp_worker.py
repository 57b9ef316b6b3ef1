"""One process of a run that `test_distributed` starts: trains a little and lets the first one write the weights."""

import sys
from pathlib import Path


def work(path: Path, world, what: str) -> None:
    """Train one step of a network or a supernet."""
    import torch
    from safetensors.torch import save_file

    from stretch.capture import capture
    from stretch.models.tiny import tiny_resnet
    from stretch.train.images import synthetic
    from stretch.train.loop import Run
    from stretch.train.recipe import SandwichConfig, TrainConfig
    from stretch.train.sandwich import SandwichStep
    from stretch.train.step import unwrapped
    from stretch.train.supernet import Supernet
    from tests.stretch.train.supernets import pool

    torch.manual_seed(0)
    model = tiny_resnet()
    config = TrainConfig(epochs=1, batch=16, learning_rate=0.05, channels_last=False)
    make_step = None
    if what == "supernet":
        # Statistics of a supernet are each process's own, so that only one without them can be compared.
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.eval()
        captured = capture(model, (1, 3, 16, 16), "tiny_resnet")
        designs = pool(captured.graph)
        model = Supernet(captured, designs)
        for subnet in model.subnets:
            subnet.model.train = lambda mode=True, value=subnet.model: value
            subnet.model.eval()
            for module in subnet.model.modules():
                module.training = False
        sandwich = SandwichConfig(random=len(designs))
        make_step = lambda prepare, device: SandwichStep(model, config, prepare, None, device, sandwich, world)  # noqa: E731
    start = {k: v.detach().clone() for k, v in model.named_parameters()}
    run = Run(model, *synthetic(4, 16, 16), config, world=world, make_step=make_step)
    for _ in run.steps():
        pass
    if world.first:
        weights = {k: v.clone() for k, v in unwrapped(run.model).state_dict().items()}
        name = next(iter(start))
        save_file(weights | {"start": start[name], "moved": dict(unwrapped(run.model).named_parameters())[name].detach().clone()}, path)
    world.barrier()


if __name__ == "__main__":
    from stretch.train.distributed import join_world

    with join_world("cpu") as joined:
        work(Path(sys.argv[1]), joined, sys.argv[2])
