"""Named axes: which channels, pixels and images each axis of a tensor of an exported network runs over."""
