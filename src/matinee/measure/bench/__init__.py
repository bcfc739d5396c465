"""What this machine does: one module a benchmark."""
