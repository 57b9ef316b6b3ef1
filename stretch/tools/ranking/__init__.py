"""An accuracy predictor for the designs of a supernet."""
