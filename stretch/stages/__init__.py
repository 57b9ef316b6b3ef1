"""Steps of several verbs between a model and their answers: read the network, take a design, divide images, compare, refine, reopen a bundle."""
