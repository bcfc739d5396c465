"""From a pack to batches on the device: clip plans, order, loader, device transform."""
