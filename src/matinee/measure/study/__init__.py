"""Pages and plots of searches."""
