"""Steps that verbs share: read a network or a design, divide images, compare, refine, reopen a bundle."""
