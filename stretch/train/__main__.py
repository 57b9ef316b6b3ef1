"""``torchrun -m stretch.train RECIPE``: one process of a run on many GPUs or machines."""

import importlib
import sys


def main() -> None:
    """`stretch train` with these arguments; it is imported by name, as the trainer may not import the command line statically."""
    importlib.import_module("stretch.cli").app(["train", *sys.argv[1:]])


if __name__ == "__main__":
    main()
