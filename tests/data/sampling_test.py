"""Which frames, crops and orders: properties that hold for every input."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matinee.data.augment.plan import random_part
from matinee.data.clips import ClipSpec, View, plan_evaluation_clip, plan_training_clip
from matinee.data.crops import (
    center_box,
    even_box,
    multi_scale_box,
    random_resized_box,
)
from matinee.data.order import epoch_order
from matinee.data.random import Rewound, generator
from matinee.data.sampling import dense, uniform_segments
from matinee.errors import ConfigError
from matinee.pack.reading.reader import SampleInfo

lengths = st.integers(1, 400)
clips = st.integers(1, 32)
seeds = st.integers(0, 2**31)


@given(lengths, clips, seeds)
def test_uniform_segments_takes_one_frame_of_each_segment(n, t, seed):
    """Frame i lies in [i·n/T, (i+1)·n/T), by exact integer arithmetic."""
    frames = uniform_segments(n, t, rng=np.random.default_rng(seed))
    assert len(frames) == t and frames.min() >= 0 and frames.max() < n
    for i, frame in enumerate(frames.tolist()):
        assert (i * n) // t <= frame <= ((i + 1) * n - 1) // t or n < t


def test_uniform_segments_centre_by_hand():
    """40 frames in 8 segments of 5: the middles."""
    assert uniform_segments(40, 8).tolist() == [2, 7, 12, 17, 22, 27, 32, 37]


@given(lengths, clips, st.integers(1, 8), seeds, st.sampled_from(["loop", "hold"]))
def test_dense_clips_lie_inside_and_keep_their_stride(n, t, stride, seed, short):
    """Where there is room, frames are `stride` apart; else the rule for short samples holds."""
    frames = dense(n, t, stride, rng=np.random.default_rng(seed), short=short)
    assert len(frames) == t and frames.min() >= 0 and frames.max() < n
    if n >= (t - 1) * stride + 1:
        assert np.all(np.diff(frames) == stride)
    elif short == "loop":
        assert frames.tolist() == [(i * stride) % n for i in range(t)]
    else:
        assert frames.tolist() == [min(i * stride, n - 1) for i in range(t)]


@given(st.integers(40, 400), st.integers(2, 8), st.integers(1, 8), st.integers(0, 100), seeds)
def test_aligned_dense_clips_start_on_a_layer(n, t, stride, first, seed):
    """Video frame numbers are multiples of the stride wherever such a start fits."""
    frames = dense(n, t, stride, rng=np.random.default_rng(seed), align=first)
    room = n - ((t - 1) * stride + 1)
    if room >= -first % stride:
        assert (first + frames[0]) % stride == 0


rates = st.sampled_from([Fraction(24000, 1001), Fraction(25), Fraction(30), Fraction(60),
                         Fraction(30000, 1001), Fraction(15), Fraction(10)])  # fmt: skip


@given(rates, st.sampled_from(["8", "4", "12.5", "29.97", "1", "60", "7.3"]), clips, lengths, seeds)
def test_clips_at_a_frame_rate_take_the_frames_nearest_in_time(video, wanted, t, n, seed):
    """Against a search through all frames for the one nearest to t0 + i / fps, in exact seconds."""
    stride = video / Fraction(wanted)
    frames = dense(n, t, stride, rng=np.random.default_rng(seed), align=-1).tolist()
    times = [Fraction(number) / video for number in range(n)]
    last = int((t - 1) * stride + Fraction(1, 2))
    if n <= last:  # too short: starts over
        assert frames == [int(i * stride + Fraction(1, 2)) % n for i in range(t)]
        return
    start = frames[0]
    for i, frame in enumerate(frames):
        moment = times[start] + i / Fraction(wanted)
        nearest = min(range(n), key=lambda k: (abs(times[k] - moment), -k))
        assert frame == nearest


@given(lengths, clips, st.integers(1, 8), seeds, st.integers(-1, 30))
def test_a_frame_rate_that_divides_the_videos_is_a_stride(n, t, stride, seed, first):
    """The same clips, aligned or not."""
    ours, theirs = (
        dense(n, t, kind(stride), rng=np.random.default_rng(seed), align=first)
        for kind in (Fraction, int)
    )
    assert np.array_equal(ours, theirs)


def test_clips_of_one_frame_rate_span_the_same_time_in_every_video():
    """16 frames at 8 a second last 15/8 s at 24, 25, 30 and 60 frames a second, within a frame."""
    for rate in (24, 25, 30, 60):
        info = SampleInfo("a", "a", None, None, None, 0, 10 * rate, Fraction(rate), 64, 48, 0)
        spec = ClipSpec(frames=16, sampling="dense", fps=8, align=False)
        plan = plan_training_clip(info, spec, np.random.default_rng(0))
        span = (plan.frames[-1] - plan.frames[0]) / rate
        assert abs(span - 15 / 8) <= 0.5 / rate
        view = plan_evaluation_clip(info, spec, View())
        assert np.diff(view.frames).tolist() == np.diff(plan.frames).tolist()


@given(lengths, clips)
def test_uniform_centres_are_those_of_temporal_segment_networks(n, t):
    """int(tick / 2 + tick * i) in float64 with tick = n / T, the published test-time formula."""
    tick = n / float(t)
    theirs = [min(int(tick / 2.0 + tick * i), n - 1) for i in range(t)]
    ours = uniform_segments(n, t)
    exact = [(Fraction(2 * i + 1) * n / (2 * t)) for i in range(t)]
    for own, other, place in zip(ours.tolist(), theirs, exact, strict=True):
        assert own == other or place.denominator == 1  # where float64 decides on a whole number


@given(st.integers(33, 400), st.integers(1, 32), seeds)
def test_uniform_clips_spread_over_a_narration_as_published_jitter_does(n, t, seed):
    """LaViLa's segments: from round(s·i) to round(s·(i+1)) with s = (n - 1) / T; a frame of each,
    anywhere (training) or in the middle (evaluation). Theirs are a part of a frame shorter."""
    size = (n - 1) / t
    bounds = [(round(size * i), min(round(size * (i + 1)), n - 1)) for i in range(t)]
    for frame, (low, high) in zip(
        uniform_segments(n, t, rng=np.random.default_rng(seed)).tolist(), bounds, strict=True
    ):
        assert low - 1 <= frame <= high + 1
    for frame, (low, high) in zip(uniform_segments(n, t).tolist(), bounds, strict=True):
        assert abs(frame - (low + high) // 2) <= 1


@given(st.integers(1, 300), st.integers(1, 16), st.integers(1, 8), st.integers(1, 10))
def test_dense_views_start_at_evenly_spread_places(n, t, stride, count):
    """SlowFast's test clips: start k of K at k (n - span) / (K - 1), rounded, float64."""
    span = (t - 1) * stride + 1
    for k in range(count):
        position = k / (count - 1) if count > 1 else 0.5
        start = int(dense(n, t, stride, position=position, align=-1)[0])
        assert abs(start - max(n - span, 0) * position) <= 0.5


def test_dense_positions_reach_both_ends():
    """Position 0 starts at the first frame, 1 ends at the last, unaligned."""
    assert dense(100, 4, 10, position=0.0, align=-1)[0] == 0
    assert dense(100, 4, 10, position=1.0, align=-1)[-1] == 99


def test_every_dense_start_can_occur():
    """All starts, none twice as often as another by construction of the draw."""
    starts = {int(dense(40, 4, 4, rng=generator(0, e, 0, "t"), align=-1)[0]) for e in range(2000)}
    assert starts == set(range(28))


def test_a_short_sample_can_be_refused():
    """With both numbers in the message."""
    with pytest.raises(ConfigError, match=r"8x4 spans 29 frames, this sample has 20"):
        dense(20, 8, 4, short="refuse")


pictures = st.tuples(st.integers(4, 500), st.integers(4, 500))


@given(pictures, seeds, st.floats(0.05, 1), st.floats(0.3, 1))
def test_boxes_are_even_and_inside(picture, seed, low, ratio):
    """Every kind of box, in every picture."""
    rng = np.random.default_rng(seed)
    for box in (
        random_resized_box(picture, rng, (low, 1.0), (ratio, 1 / ratio)),
        multi_scale_box(picture, rng),
        center_box(picture, low, place=float(rng.random())),
        even_box(*(rng.uniform(-50, 600, 4)), picture),
    ):
        assert box.x >= 0 and box.y >= 0 and box.width >= 2 and box.height >= 2
        assert box.x + box.width <= picture[0] and box.y + box.height <= picture[1]
        assert not any(value % 2 for value in (box.x, box.y, box.width, box.height))


def test_random_resized_boxes_have_the_area_and_aspect_asked_for():
    """Within the rounding to even pixels, over many draws in a large picture."""
    rng = np.random.default_rng(0)
    boxes = [random_resized_box((2000, 2000), rng, (0.2, 0.5), (0.5, 2.0)) for _ in range(500)]
    areas = np.array([box.width * box.height / 2000**2 for box in boxes])
    aspects = np.array([box.width / box.height for box in boxes])
    assert 0.199 < areas.min() < 0.22 and 0.48 < areas.max() < 0.501
    assert 0.499 < aspects.min() < 0.55 and 1.8 < aspects.max() < 2.004
    assert abs(np.log(aspects).mean()) < 0.08  # even in the logarithm


def test_multi_scale_boxes_take_all_scales_and_places():
    """10 pairs of sides at most one step apart."""
    rng = np.random.default_rng(0)
    boxes = [multi_scale_box((400, 400), rng) for _ in range(2000)]
    assert {box.width for box in boxes} == {400, 350, 300, 264}
    assert len({(box.width, box.height) for box in boxes}) == 10


@given(seeds)
def test_erased_parts_lie_inside(seed):
    """And cover 2–20 % unless cut at an edge."""
    top, bottom, left, right = random_part(
        np.random.default_rng(seed), (0.02, 0.2), (1 / math.e, math.e)
    )
    assert 0 <= top < bottom <= 1 and 0 <= left < right <= 1
    assert (bottom - top) * (right - left) <= 0.2001


@given(st.integers(1, 500), st.integers(0, 5), seeds)
def test_an_epoch_is_a_permutation_that_depends_on_seed_and_epoch(count, epoch, seed):
    """Same arguments, same order; unshuffled is the identity."""
    order = epoch_order(count, seed=seed, epoch=epoch, shuffle=True)
    assert sorted(order.tolist()) == list(range(count))
    assert order.tolist() == epoch_order(count, seed=seed, epoch=epoch, shuffle=True).tolist()
    plain = epoch_order(count, seed=seed, epoch=epoch, shuffle=False)
    assert plain.tolist() == list(range(count))


@given(st.integers(0, 2**40), st.integers(0, 99), st.integers(0, 2**40), st.text(max_size=8))
def test_a_rewound_generator_draws_what_a_new_one_does(seed, epoch, sample, purpose):
    """Floats, integers and bits left over from 32-bit draws."""
    rewound = Rewound()
    rewound.at(1, 2, 3, "else").integers(5, dtype=np.int32)
    for draw in (
        lambda g: g.random(3).tolist(), lambda g: g.integers(1000, size=5, dtype=np.int32).tolist(),
        lambda g: g.permutation(9).tolist(), lambda g: g.normal(),
    ):  # fmt: skip
        again = rewound.at(seed, epoch, sample, purpose)
        assert draw(again) == draw(generator(seed, epoch, sample, purpose))


def test_epochs_and_purposes_differ():
    """No two of them share a stream."""
    draws = {
        generator(seed, epoch, sample, purpose).random()
        for seed in range(3) for epoch in range(3) for sample in range(3)
        for purpose in ("clip0", "clip1", "order")
    }  # fmt: skip
    assert len(draws) == 81
