"""Archives of torch.export (`.pt2`) as torch modules: `read_module` gives one that computes what the archive does."""

from stretch.models.pt2.network import read_module

__all__ = ["read_module"]
