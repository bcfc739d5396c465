"""What training does to the picture of a clip on the device; `plan.py` decides it, numbers only."""
