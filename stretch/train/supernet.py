"""A supernet: one set of weights for many designs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from predictors.errors import StretchError
from stretch.capture import Captured
from stretch.planning.design.branch_design import BranchDesign
from stretch.train.sharing import Sharing, envelope
from stretch.transform.calibrate import renew_statistics
from stretch.transform.model import BranchedModel


class Subnet:
    """One design of a supernet: a branched network whose weights lie in one vector.

    Attributes:
        model: The network; its statistics are its own.
        index: Position in the shared vector of each of its weights, (n,) int64.
        weights: Its weights, (n,); the parameters of `model` are views of it.
        gradients: Where its gradients are gathered, (n,).
    """

    def __init__(self, design: BranchDesign, sharing: Sharing, device: torch.device, channels_last: bool) -> None:
        self.design = design
        self.model = BranchedModel(sharing.captured.graph, design).to(device)
        positions = sharing.positions(design)
        names = dict(self.model.named_parameters())
        nhwc = channels_last
        order = {name: names[name].dim() == 4 and nhwc for name in names}
        flat = [positions[name].permute(0, 2, 3, 1).flatten() if order[name] else positions[name].flatten() for name in names]
        self.index = torch.cat(flat).to(device)
        self.weights = torch.zeros(len(self.index), device=device)
        self.gradients = torch.zeros_like(self.weights)
        self.slots: list[torch.Tensor] = []
        at = 0
        for name, old in names.items():
            where, _, key = name.rpartition(".")
            view = _view(self.weights, at, old.shape, order[name])
            self.slots.append(_view(self.gradients, at, old.shape, order[name]))
            self.model.get_submodule(where).register_parameter(key, nn.Parameter(view))
            at += old.numel()
        self.parameters = list(self.model.parameters())

    @torch.no_grad()
    def load(self, shared: torch.Tensor) -> None:
        """Take the weights of now from the shared vector."""
        torch.index_select(shared, 0, self.index, out=self.weights)

    @torch.no_grad()
    def gather(self, gradients: Sequence[torch.Tensor]) -> None:
        """Put the gradients of its parameters, in order, into `gradients`."""
        torch._foreach_copy_(self.slots, list(gradients))

    @torch.no_grad()
    def add_to(self, shared: torch.Tensor) -> None:
        """Add its gradients to the shared vector's; no position occurs twice, so the sum has one order."""
        shared[self.index] = shared[self.index] + self.gradients


class Supernet(nn.Module):
    """Weights shared by a pool of designs.

    The first subnet is the envelope of the pool, the largest of each branch; the
    second the smallest; the designs of the pool follow.

    Attributes:
        flat: The shared weights, the only parameter.
        subnets: Largest, smallest, then one for each design of the pool.
        active: What `forward` runs.
    """

    def __init__(
        self,
        captured: Captured,
        designs: Sequence[BranchDesign],
        device: torch.device | None = None,
        *,
        scratch: bool = False,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        where = device or torch.device("cpu")
        # Checked before the envelope, which takes equal segments for granted.
        Sharing(captured, designs)
        everything = [envelope(designs, max), envelope(designs, min), *designs]
        self.sharing = Sharing(captured, everything)
        initial = self.sharing.initial()
        if scratch:
            _initialise(self.sharing, initial)
        self.flat = nn.Parameter(initial.to(where))
        # A tuple, so that their views are no parameters of the supernet.
        self.subnets = tuple(Subnet(d, self.sharing, where, channels_last) for d in everything)
        self.active = self.subnets[0]
        self._start_statistics(captured, scratch)

    @property
    def pool(self) -> tuple[Subnet, ...]:
        """The subnets of the designs that were given."""
        return self.subnets[2:]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the active subnet, with the weights of now."""
        self.active.load(self.flat)
        return self.active.model(x)

    def train(self, mode: bool = True) -> "Supernet":
        """Set the mode of every subnet."""
        for subnet in self.subnets:
            subnet.model.train(mode)
        return super().train(mode)

    def extract(self, design: BranchDesign, batches: Sequence[torch.Tensor]) -> BranchedModel:
        """A stand-alone network of a design, its batch-norm statistics taken anew."""
        if not batches:
            raise StretchError("a subnet needs images for its batch-norm statistics, none were given", "give some hundred training images")
        subnet = Subnet(design, self.sharing, self.flat.device, channels_last=False)
        subnet.load(self.flat)
        model = BranchedModel(self.sharing.captured.graph, design).to(self.flat.device)
        parameters = dict(subnet.model.named_parameters())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(parameters[name])
            renew_statistics(model, batches)
        return model.eval()

    @torch.no_grad()
    def calibrate(self, batches: Sequence[torch.Tensor]) -> None:
        """Take the batch-norm statistics of every subnet anew.

        Weights stay: the largest subnet has the original's, and what is fitted to one
        design would be wrong for the others that share it.
        """
        for subnet in self.subnets:
            subnet.load(self.flat)
            renew_statistics(subnet.model, batches)

    def state_dict(self, *args: Any, keep_vars: bool = False, **kwargs: Any) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """The shared weights, and every subnet's statistics as ``subnets.N.NAME``."""
        state = {"flat": self.flat if keep_vars else self.flat.detach()}
        for number, subnet in enumerate(self.subnets):
            state |= {f"subnets.{number}.{name}": value for name, value in subnet.model.named_buffers()}
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Take what `state_dict` returned; the pool must be the same."""
        current_state = self.state_dict()
        if current_state.keys() != state_dict.keys() or any(current_state[name].shape != state_dict[name].shape for name in current_state):
            raise StretchError("these are the weights of another supernet", "its designs must be the ones it was trained with")
        with torch.no_grad():
            for name, value in current_state.items():
                value.copy_(state_dict[name])

    @torch.no_grad()
    def _start_statistics(self, captured: Captured, scratch: bool) -> None:
        """Give the subnets the original's batch-norm statistics, channel by channel."""
        for subnet in self.subnets:
            subnet.load(self.flat)
            if scratch:
                continue
            positions = self.sharing.positions(subnet.design)
            for name, norm in _norms(subnet.model):
                segment, branch, op = name.split(".")
                if op in captured.weights and f"{name}.weight" in positions:
                    rows = positions[f"{name}.weight"] - self.sharing.offsets.starts[f"{segment}.{branch}.{op}.weight"]
                    norm.running_mean.copy_(captured.weights[op]["running_mean"][rows])
                    norm.running_var.copy_(captured.weights[op]["running_var"][rows])
                else:
                    norm.running_var.fill_(1 - norm.eps)


def _norms(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.track_running_stats:
            yield name, module


def _view(flat: torch.Tensor, start: int, shape: torch.Size, nhwc: bool) -> torch.Tensor:
    piece = flat[start : start + shape.numel()]
    if not nhwc:
        return piece.view(shape)
    out, into, height, width = shape
    return piece.view(out, height, width, into).permute(0, 3, 1, 2)


def _initialise(sharing: Sharing, flat: torch.Tensor) -> None:
    """Random convolution weights, batch-norms and biases as a new network has them."""
    for name, shape in sharing.offsets.shapes.items():
        start = sharing.offsets.starts[name]
        value = torch.zeros(shape)
        if len(shape) == 4:
            nn.init.kaiming_normal_(value, mode="fan_out", nonlinearity="relu")
        elif len(shape) == 2:
            nn.init.normal_(value, std=0.01)
        elif name.endswith(".weight"):
            value.fill_(1.0)
        flat[start : start + value.numel()] = value.flatten()
