"""From networks to numbers: kernels of each network, their groups, and how many units of each parameter they have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from predictors.devices import ITEM_BYTES, Processor
from predictors.fitting.formula import INFERENCE, Formula, Parameter, TermPrior
from predictors.fitting.nnls import Vector
from predictors.fusion import Fuser, KernelCost, load_rules
from predictors.graph import OpGraph
from predictors.models.fitted import columns
from predictors.models.terms import Grain, terms


def group_of(cost: KernelCost, groups: Sequence[str]) -> str | None:
    """The finest group that a kernel is in; None if there is none."""
    fine = f"{cost.kind}:{cost.variant}"
    return fine if fine in groups else cost.kind if cost.kind in groups else None


def grain_of(processor: Processor, precision: str) -> Grain:
    """Units that a processor works in at a precision."""
    return Grain(processor.width_slice, round(processor.profile.reduce_slice.value), ITEM_BYTES[precision])


@dataclass
class Networks:
    """Networks as the kernels that one backend launches."""

    graphs: Mapping[str, OpGraph]  # Networks by name.
    families: Mapping[str, str]  # Family of each.
    backend: str  # Fusion rules.
    costs: dict[str, list[KernelCost]] = field(init=False)

    def __post_init__(self) -> None:
        """Fuse every network once."""
        fuser = Fuser(load_rules(self.backend))
        self.costs = {name: [kernel.cost for kernel in fuser.fuse(graph)] for name, graph in self.graphs.items()}

    @property
    def kinds(self) -> dict[str, frozenset[str]]:
        """Kinds of kernels of each network."""
        return {name: frozenset(cost.kind for cost in costs) for name, costs in self.costs.items()}


@dataclass(frozen=True)
class Design:
    """Units of each parameter in each network."""

    names: tuple[str, ...]  # Networks, one a row.
    parameters: tuple[Parameter, ...]  # One a column.
    groups: tuple[str, ...]  # Groups of kernels that the parameters speak of.
    units: Vector  # Networks × parameters.
    left: dict[str, list[KernelCost]]  # Kernels of each network that are in no group.

    def priors(self, precision: str) -> list[TermPrior]:
        """What is known of each parameter before anything is measured."""
        return [parameter.prior.get(precision, TermPrior()) for parameter in self.parameters]

    def group_terms(self, sizes: Vector) -> dict[str, dict[str, float]]:
        """Size of each term by group: ms for a unit."""
        terms: dict[str, dict[str, float]] = {group: {} for group in self.groups}
        for parameter, size in zip(self.parameters, sizes, strict=True):
            for group, some in terms.items():
                if parameter.term != INFERENCE and parameter.takes(group) and size > 0:
                    some[parameter.term] = some.get(parameter.term, 0.0) + float(size)
        return terms

    def fixed(self, sizes: Vector) -> float:
        """What an inference takes beside its kernels, ms."""
        return sum(float(size) for parameter, size in zip(self.parameters, sizes, strict=True) if parameter.term == INFERENCE)


def design(networks: Networks, formula: Formula, grain: Grain, precision: str) -> Design:
    """Units of the parameters that have a prior at a precision.

    Args:
        precision: Such as ``fp32``.
    """
    parameters = tuple(parameter for parameter in formula.parameters if precision in parameter.prior)
    groups = tuple(dict.fromkeys(group for parameter in parameters for group in parameter.groups))
    units = np.zeros((len(networks.costs), len(parameters)))
    left: dict[str, list[KernelCost]] = {}
    for row, (name, costs) in enumerate(networks.costs.items()):
        inside: dict[str, list[KernelCost]] = {}
        for cost in costs:
            group = group_of(cost, groups)
            if group is None:
                left.setdefault(name, []).append(cost)
            else:
                inside.setdefault(group, []).append(cost)
        tables = {group: columns(some) for group, some in inside.items()}
        for column, parameter in enumerate(parameters):
            if parameter.term == INFERENCE:
                units[row, column] = 1.0
            else:
                units[row, column] = sum(
                    float(np.sum(terms.get(parameter.term).units(table, grain)))
                    for group, table in tables.items()
                    if parameter.takes(group)
                )
    return Design(tuple(networks.costs), parameters, groups, units, left)
