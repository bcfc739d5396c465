"""Video models. They know tensors, not data sets."""
