from experiments.width_slicing.run import summary

BOTH = {
    "network": "densenet121",
    "ours": {"seconds": 1.0, "kept": 0.3, "distance": 1e-7},
    "theirs": {"seconds": 2.0, "kept": 0.3},
    "load": 1.0,
}
OURS = {"network": "timm:a", "ours": {"seconds": 1.0, "kept": 0.3, "distance": 1e-7}, "theirs": {"failed": "RuntimeError: x"}, "load": 1.0}
NONE = {"network": "timm:b", "failed": "more than 900 s", "load": 1.0}


def test_counts_are_of_networks_that_each_of_both_slices():
    found = {row["set"]: row for row in summary([BOTH, OURS, NONE])}
    assert found["timm"] == {
        "set": "timm", "networks": 2, "ours": 1, "Torch-Pruning": 0, "only ours": 1, "only Torch-Pruning": 0, "ours faster": 0, "of": 0
    }  # fmt: skip
    assert (found["DenseNet"]["ours faster"], found["DenseNet"]["of"], found["torchvision"]["networks"]) == (1, 1, 1)
