"""Small recipes for tests."""

HEAD = 'model = "tiny_resnet"\ndevice = "mi9"\nweights = "none"\n'
BODY = """
[data]
size = 16
count = 64
[train]
epochs = 3
batch = 16
learning_rate = 0.05
channels_last = false
[keep]
tensorboard = false
"""
DESIGN = """model = "tiny_resnet"
[[segments]]
name = "s2"
branches = [{ processor = "cpu", depth = 1 }, { processor = "gpu", depth = 2 }]
"""


def network(folder, extra=""):
    """Write a recipe of one branched network."""
    (folder / "d.toml").write_text(DESIGN)
    path = folder / "network.toml"
    path.write_text(HEAD + 'design = "d.toml"\n' + BODY + extra)
    return path


def supernet(folder, extra=""):
    """Write a recipe of a supernet of two designs."""
    for name, (cpu, gpu) in {"a": (1, 2), "b": (2, 1)}.items():
        text = DESIGN.replace("depth = 1", f"depth = {cpu}").replace("depth = 2 }]", f"depth = {gpu} }}]")
        (folder / f"{name}.toml").write_text(text)
    path = folder / "supernet.toml"
    path.write_text(HEAD + BODY + '[supernet]\nrandom = 1\nmacs = [0.8, 1.2]\nimages = 64\ndesigns = ["a.toml", "b.toml"]\n' + extra)
    return path
