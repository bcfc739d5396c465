"""Which stage of training holds the others up, and what to change."""
