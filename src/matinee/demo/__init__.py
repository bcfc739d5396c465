"""The demo: videos whose classes differ only in the order of time, and the run that shows it."""
