"""Measures of predictions, and predictions over several views. Below `train`, which validates."""
