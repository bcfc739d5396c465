"""What is trained: a task joins a model to a batch and owns the loss."""
