"""Which settings to train with: the learning-rate range test, and the search by many short runs."""
