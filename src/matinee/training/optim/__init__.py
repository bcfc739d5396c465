"""Optimizers, learning rates, averages of weights."""
