"""Archives of small networks, and such as nobody's torch wrote."""

import json
import warnings
import zipfile

import torch
from torch import nn

CALLS, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"


class Small(nn.Module):
    """A convolution, what is behind it, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def save(path, module, shape=(1, 3, 6, 5), decomposed=False, dtype=torch.float32, **more):
    """Export a module and save it; gives the path."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, (torch.zeros(shape, dtype=dtype),), **more)
        torch.export.save(program.run_decompositions() if decomposed else program, path)
    return path


def changed(path, record, change, out=None):
    """Write an archive whose record is what `change` makes of it, JSON as such; None leaves it out."""
    with zipfile.ZipFile(path) as old:
        records = {entry.filename: old.read(entry) for entry in old.infolist()}
    (full,) = [name for name in records if name.partition("/")[2] == record]
    content = records.pop(full)
    built = change(json.loads(content) if full.endswith(".json") else content)
    with zipfile.ZipFile(out or path, "w") as new:
        for name, item in records.items():
            new.writestr(name, item)
        if built is not None:
            new.writestr(full, built if isinstance(built, bytes) else json.dumps(built))
    return out or path
