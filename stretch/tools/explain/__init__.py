"""Where a runtime puts the operators of a file that nn-stretch did not write."""
