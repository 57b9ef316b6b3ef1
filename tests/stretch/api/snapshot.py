"""Snapshots of a module and of the global random generators, neither of which a call may change."""

import random

import numpy as np
import torch

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def of_module(module):
    """Names, values, objects, flags, gradients, modes and hooks of a module; values are bytes that share no memory with it."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {
        "values": [(name, str(t.dtype), str(t.device), t.detach().double().numpy().tobytes(), t._version) for name, t in tensors],
        "objects": [(name, id(t)) for name, t in tensors],
        "requires_grad": [(name, t.requires_grad) for name, t in tensors],
        "gradients": [(name, None if t.grad is None else t.grad.double().numpy().tobytes()) for name, t in tensors],
        "modes": [(name, part.training) for name, part in module.named_modules()],
        "hooks": [(name, kind, list(getattr(part, kind))) for name, part in module.named_modules() for kind in HOOKS],
        "attributes": [(name, sorted(vars(part))) for name, part in module.named_modules()],
    }


def of_random_state():
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 - the snapshot is of the global generator
    return random.getstate(), (name, keys.tobytes(), *rest), torch.get_rng_state().numpy().tobytes()
