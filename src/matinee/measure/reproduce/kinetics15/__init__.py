"""Training Kinetics in 15 minutes (arXiv 1910.00932), again: `matinee reproduce kinetics15`."""

from matinee.measure.reproduce.kinetics15.options import Options as Options
from matinee.measure.reproduce.kinetics15.run import reproduce as reproduce
