"""A predictor of the accuracy of a supernet's designs."""
