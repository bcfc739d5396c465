"""A timeline: what the format demands, and that it tells what happened."""

import json
import time

import pytest

from matinee.data.clips import ClipSpec
from matinee.data.decode_cost import DecodeCost
from matinee.data.loader import ClipLoader
from matinee.measure.diagnose.trace import Trace, trace_events, write_trace
from matinee.pack.reading.reader import Pack
from matinee.spans import Spans

SPEC = ClipSpec(frames=4, sampling="dense", stride=4, size=32)


def check_format(content):
    """As the Trace Event Format describes its JSON object form: complete and metadata events, and
    that stretches of a thread nest.
    """
    assert set(content) == {"traceEvents", "displayTimeUnit"}
    assert content["displayTimeUnit"] in ("ms", "ns")
    events, named, tracks = content["traceEvents"], set(), {}
    for event in events:
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert isinstance(event["name"], str) and event["name"]
        if event["ph"] == "M":
            kind = event["name"]
            known = {"process_name": "name", "thread_name": "name"}
            key = known.get(kind, "sort_index")
            assert kind in (*known, "process_sort_index", "thread_sort_index")
            assert isinstance(event["args"][key], str if kind in known else int)
            named.add((kind, event["pid"], event["tid"] if "thread" in kind else 0))
        else:
            assert event["ph"] == "X" and event["ts"] >= 0 and event["dur"] >= 0
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    for (process, thread), held in tracks.items():
        assert ("process_name", process, 0) in named
        assert ("thread_name", process, thread) in named
        assert [e["ts"] for e in held] == sorted(e["ts"] for e in held)
        open_until = []  # ends of the stretches around, in nanoseconds
        for event in held:
            begin, end = (round(1000 * t) for t in (event["ts"], event["ts"] + event["dur"]))
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1], event
            open_until.append(end)
    return tracks


def traced_epoch(pack, trace, **how):
    settings = {"split": "train", "clip": SPEC, "batch_size": 4, "workers": 2, "prefetch": 1} | how
    spans = Spans()
    with ClipLoader(Pack(pack), **settings) as loader:
        loader.spans = spans
        with trace.follow(spans, loader):
            batches = iter(loader)
            for number in range(len(loader)):
                with trace.stretch(f"step {number}", number=number):
                    with spans("data_wait"):
                        next(batches)
                    with spans("forward"):
                        time.sleep(0.005)
            loader._drain()
        return loader, loader.take_costs(), spans.take()


@pytest.mark.parametrize(
    "how", [{"mode": "threads"}, {"threads": 2}, {"threads": 1}], ids=["threads", "one", "two"]
)
def test_every_clip_and_span_is_on_its_track(clips_pack, tmp_path, how):
    """Decoding processes are processes, their threads threads; sums are those of the loader."""
    trace = Trace()
    loader, cost, spent = traced_epoch(clips_pack, trace, **how)
    write_trace(tmp_path / "trace.json", [trace])
    content = json.loads((tmp_path / "trace.json").read_text())
    tracks = check_format(content)
    loop = tracks[(0, 1)]
    for name, seconds in spent.items():
        told = sum(event["dur"] for event in loop if event["name"] == name)
        assert told / 1e6 == pytest.approx(seconds, rel=1e-3, abs=1e-5)
    steps = tracks[(0, 0)]
    assert [event["args"]["number"] for event in steps] == list(range(len(loader)))
    for step in steps:  # what was spent lies within
        inside = [e for e in loop if step["ts"] <= e["ts"] <= step["ts"] + step["dur"]]
        assert {e["name"] for e in inside} >= {"data_wait", "h2d", "forward"}
    decoders = {track: held for track, held in tracks.items() if track not in ((0, 0), (0, 1))}
    own = how.get("mode") == "threads"
    assert {process == 0 for process, _ in decoders} == {own}
    assert len({process for process, _ in decoders}) <= (1 if own or how["threads"] == 2 else 2)
    jobs = [e for held in decoders.values() for e in held if "args" in e]
    assert len(jobs) == cost.clips
    assert {(e["args"]["epoch"], e["args"]["batch"]) for e in jobs} >= {
        (0, number) for number in range(len(loader))
    }
    assert sum(e["args"]["packets"] for e in jobs) == cost.packets
    for kind, seconds in (
        ("read", cost.read_s),
        ("decode", cost.decode_s),
        ("scale", cost.scale_s),
    ):
        held = [e for events in decoders.values() for e in events if e["name"] == kind]
        assert sum(e["dur"] for e in held) / 1e6 == pytest.approx(seconds, rel=0.01, abs=1e-4)


def test_nothing_is_taken_down_unless_asked_for(clips_pack):
    """Nor after it has ended."""
    spans = Spans()
    trace = Trace()
    with ClipLoader(Pack(clips_pack), split="train", clip=SPEC, batch_size=4, workers=1,
                    mode="threads") as loader:  # fmt: skip
        with trace.follow(spans, loader):
            pass
        next(iter(loader))
        with spans("forward"):
            pass
        loader._drain()
        assert loader.take_costs() != DecodeCost()
    assert not trace.stretches


def test_ranks_have_processes_of_their_own(tmp_path):
    """Their decoders as well; the first event of all is the begin of time."""
    traces = []
    for rank in range(3):
        trace, spans = Trace(rank), Spans()
        with trace.follow(spans), spans("forward"):
            time.sleep(0.001)
        traces.append(trace)
    tracks = check_format({"traceEvents": trace_events(traces), "displayTimeUnit": "ms"})
    assert len({process for process, _ in tracks}) == 3
    assert min(event["ts"] for held in tracks.values() for event in held) == 0


def test_what_begins_together_is_told_from_outside_in():
    trace = Trace()
    trace.step("inner", 1.0, 1.5)
    trace.step("outer", 1.0, 2.0)
    events = [event for event in trace_events([trace]) if event["ph"] == "X"]
    assert [event["name"] for event in events] == ["outer", "inner"]
    assert events[0]["dur"] == 1e6


def test_an_empty_trace_can_be_written(tmp_path):
    write_trace(tmp_path / "empty.json", [Trace()])
    check_format(json.loads((tmp_path / "empty.json").read_text()))


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(OSError, match=r"trace\.json"):
        write_trace(tmp_path / "nowhere" / "trace.json", [Trace()])
