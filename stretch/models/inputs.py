"""What an operator of a file reads: tensors of the running network, stored ones, or nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from predictors.errors import StretchError

#: How a format's rules see a tensor of the running network.
View = TypeVar("View")


@dataclass(frozen=True)
class OperatorInputs(Generic[View]):
    """What one operator reads."""

    inputs: Sequence[View | np.ndarray | None]  # In the order of the file: tensors of the network, stored ones, None where one is left out.

    def value(self, i: int) -> View | np.ndarray | None:
        """Input `i`, or None where it is left out."""
        return self.inputs[i] if i < len(self.inputs) else None

    def known(self, i: int, what: str) -> np.ndarray:
        """Input `i`, which the file must store."""
        value = self.value(i)
        if not isinstance(value, np.ndarray):
            raise StretchError(f"its {what} depends on what the network reads, or is left out")
        return value

    def optional(self, i: int, what: str) -> np.ndarray | None:
        """Input `i`, which the file stores if it is there."""
        return None if self.value(i) is None else self.known(i, what)
