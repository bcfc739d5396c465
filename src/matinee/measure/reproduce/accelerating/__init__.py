"""A review of accelerating training (arXiv 2312.10024), again: `matinee reproduce accelerating`."""

from matinee.measure.reproduce.accelerating.options import Options as Options
from matinee.measure.reproduce.accelerating.run import reproduce as reproduce
