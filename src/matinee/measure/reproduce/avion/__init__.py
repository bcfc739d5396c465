"""AVION (arXiv 2309.16669) again, at the size of this machine: `matinee reproduce avion`."""

from matinee.measure.reproduce.avion.options import Options as Options
from matinee.measure.reproduce.avion.run import reproduce as reproduce
