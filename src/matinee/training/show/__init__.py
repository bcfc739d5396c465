"""What a run shows: on the terminal, in logs."""
