"""From a name, a file or a module to a network of operators."""
