"""Image sets."""
