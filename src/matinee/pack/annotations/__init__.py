"""Readers of labels and splits. Each returns `Annotations`; writing a pack starts from there."""

from matinee.pack.annotations.base import Annotations as Annotations
from matinee.pack.annotations.base import VideoFile as VideoFile
from matinee.pack.annotations.folders import read_class_folders as read_class_folders
from matinee.pack.annotations.samples import Sample as Sample
from matinee.pack.annotations.samples import Samples as Samples
from matinee.pack.annotations.samples import hold_out as hold_out
from matinee.pack.annotations.table import read_table as read_table
