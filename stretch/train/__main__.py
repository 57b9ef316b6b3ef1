"""Entry point of ``torchrun -m stretch.train RECIPE``: one process of a run on many GPUs or machines."""

import importlib
import sys


def main() -> None:
    """Run `stretch train` with these arguments; the command line is imported by name, because the trainer may not import it statically."""
    importlib.import_module("stretch.cli").app(["train", *sys.argv[1:]])


if __name__ == "__main__":
    main()
