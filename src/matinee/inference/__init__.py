"""What one does with a trained run: evaluate it, predict with it."""
