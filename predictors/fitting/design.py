"""Design matrix of networks: their kernels, the kernels' groups, and the units of each parameter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from predictors.devices import ITEM_BYTES, Processor
from predictors.errors import StretchError
from predictors.files import read_toml
from predictors.fitting.regression import Vector
from predictors.fusion import Fuser, KernelCost, load_rules
from predictors.graph import OpGraph
from predictors.models.fitted import Grain, columns, terms
from predictors.predictor import io_elements

FORMULA_FOLDER = Path(__file__).parent / "formulas"

#: Term of an inference as a whole: a parameter without a kernel.
INFERENCE = "inference"

_Size = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class TermPrior(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost of a unit of a term before any measurement."""

    compute: _Size = 0.0  # In multiply-accumulates.
    memory: _Size = 0.0  # In bytes from memory.
    launch: _Size = 0.0  # In launches of operators.


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One number that a fit finds: ms for a unit of a term, in all the groups of kernels that share it."""

    term: str  # Name of a term (`predictors.models.fitted`), or `INFERENCE`.
    groups: tuple[str, ...]  # ``kind`` (with all its variants) or ``kind:variant``.
    shares: tuple[str, ...]  # Scalings by which its size with more threads follows from that with one.
    prior: dict[str, TermPrior]  # Its size before anything is measured, by precision.
    spread: Annotated[float, msgspec.Meta(gt=0, le=5)] = 0.5  # How unsure that is, as a logarithm; for pooled fits.

    def applies_to(self, group: str) -> bool:
        """Whether it has a part in the times of a group."""
        return group in self.groups or group.partition(":")[0] in self.groups


class Scaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Effect of more threads on some parameters before any measurement: ``factor / threads ** exponent``."""

    exponent: Annotated[float, msgspec.Meta(ge=0, le=1)]  # 1 where work is divided, 0 where it is not.
    factor: Annotated[float, msgspec.Meta(gt=0, le=10)]  # Beside that.
    #: How unsure that is: relative; for pooled fits, how differently devices do this part of their work, as a logarithm.
    spread: Annotated[float, msgspec.Meta(gt=0, le=5)] = 0.2


class Formula(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the kernels of one backend are timed."""

    source: str  # Where it comes from.
    parameters: tuple[Parameter, ...] = ()  # For fits to whole networks.
    threads: dict[str, Scaling] = {}  # Scalings by name.
    kernels: dict[str, tuple[str, ...]] = {}  # For fits to single kernels: terms of each group.
    like: dict[str, str] = {}  # Kinds that tables of kernels do not have, and the group whose times theirs are.
    #: Cost of a multiply-accumulate, a byte and a launch by precision, ms, on a device of usual speed. Where they are given, fits to
    #: whole networks are pooled over devices and precisions (`predictors.fitting.pooled`); a parameter's first scaling is then the part of
    #: the work that it belongs to.
    units: dict[str, TermPrior] = {}
    #: Error of a time that the formula cannot explain, as a logarithm; for pooled fits.
    noise: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.15
    #: Difference between precisions in how a device does the parts of its work, as a logarithm; for pooled fits.
    apart: Annotated[float, msgspec.Meta(gt=0, le=5)] = 0.15


@cache
def load_formula(backend: str) -> Formula:
    """The formula of a backend, or of the one that it is based on."""
    path = FORMULA_FOLDER / f"{backend}.toml"
    if not path.exists():
        base = load_rules(backend).base
        if base is None:
            names = ", ".join(sorted(file.stem for file in FORMULA_FOLDER.glob("*.toml")))
            raise StretchError(
                f"kernels of `{backend}` cannot be fitted: predictors/fitting/formulas has none for it", f"there are: {names}"
            )
        return load_formula(base)
    try:
        formula = msgspec.convert(read_toml(path, "formula"), Formula)
    except msgspec.ValidationError as error:
        raise StretchError(f"{path.name} is not a formula: {error}") from error
    term_names = [parameter.term for parameter in formula.parameters if parameter.term != INFERENCE]
    for name in [*term_names, *(term for group_terms in formula.kernels.values() for term in group_terms)]:
        terms.get(name)
    for parameter in formula.parameters:
        if missing := [share for share in parameter.shares if share not in formula.threads]:
            raise StretchError(f"{path.name}: the parameter `{parameter.term}` has the scaling `{missing[0]}`, which [threads] lacks")
    return formula


def find_group(cost: KernelCost, groups: Sequence[str]) -> str | None:
    """Return the finest group that contains a kernel; None if none does."""
    variant_group = f"{cost.kind}:{cost.variant}"
    return variant_group if variant_group in groups else cost.kind if cost.kind in groups else None


def processor_grain(processor: Processor, precision: str) -> Grain:
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

    def io_elements(self, name: str) -> int:
        """Elements of all inputs and outputs of a network."""
        return sum(map(sum, io_elements(self.graphs[name])))

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
    ungrouped: dict[str, list[KernelCost]]  # Kernels of each network that are in no group.

    def priors(self, precision: str) -> list[TermPrior]:
        """Return the prior of each parameter, before any measurement."""
        return [parameter.prior.get(precision, TermPrior()) for parameter in self.parameters]

    def group_terms(self, sizes: Vector) -> dict[str, dict[str, float]]:
        """Size of each term by group: ms for a unit."""
        terms: dict[str, dict[str, float]] = {group: {} for group in self.groups}
        for parameter, size in zip(self.parameters, sizes, strict=True):
            for group, group_terms in terms.items():
                if parameter.term != INFERENCE and parameter.applies_to(group) and size > 0:
                    group_terms[parameter.term] = group_terms.get(parameter.term, 0.0) + float(size)
        return terms

    def fixed_ms(self, sizes: Vector) -> float:
        """Return the time of an inference in addition to its kernels, ms."""
        return sum(float(size) for parameter, size in zip(self.parameters, sizes, strict=True) if parameter.term == INFERENCE)


def design(networks: Networks, formula: Formula, grain: Grain, precision: str) -> Design:
    """Units of the parameters that have a prior at a precision.

    Args:
        precision: Such as ``fp32``.
    """
    parameters = tuple(parameter for parameter in formula.parameters if precision in parameter.prior)
    groups = tuple(dict.fromkeys(group for parameter in parameters for group in parameter.groups))
    units = np.zeros((len(networks.costs), len(parameters)))
    ungrouped: dict[str, list[KernelCost]] = {}
    for row, (name, costs) in enumerate(networks.costs.items()):
        costs_by_group: dict[str, list[KernelCost]] = {}
        for cost in costs:
            group = find_group(cost, groups)
            if group is None:
                ungrouped.setdefault(name, []).append(cost)
            else:
                costs_by_group.setdefault(group, []).append(cost)
        tables = {group: columns(group_costs) for group, group_costs in costs_by_group.items()}
        for column, parameter in enumerate(parameters):
            if parameter.term == INFERENCE:
                units[row, column] = 1.0
            else:
                units[row, column] = sum(
                    float(np.sum(terms.get(parameter.term).units(table, grain)))
                    for group, table in tables.items()
                    if parameter.applies_to(group)
                )
    return Design(tuple(networks.costs), parameters, groups, units, ungrouped)
