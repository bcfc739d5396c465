"""Rows of a run's log without what tells the time: what two equal runs have in common."""

from matinee.training.state.runfolder import RunFolder

TIMES = ("spans", "clips_per_s", "window", "loader", "ranks")


def untimed(out):
    return [
        {name: value for name, value in row.items() if name not in TIMES}
        for row in RunFolder(out).rows()
    ]
