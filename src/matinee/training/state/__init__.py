"""What a run remembers: its state, its checkpoints, its folder."""
