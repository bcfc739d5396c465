"""The training loop and what it needs: config, optimizer, schedule, state, run folder."""
