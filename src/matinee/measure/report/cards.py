"""Sections that show clips: classified, retrieved, reconstructed."""

from __future__ import annotations

from collections.abc import Sequence

from matinee.measure.draw import page
from matinee.measure.draw.formats import percent
from matinee.measure.report.examples import Example
from matinee.measure.report.reconstructions import ROWS, Drawn
from matinee.measure.report.retrievals import Place, Retrieval
from matinee.measure.report.rundata import RunData
from matinee.measure.report.strips import Strip
from matinee.tasks.config import MaskedConfig

_NOTHING_ASKED = "No examples were asked for."
_EVENLY = "Frames are evenly spaced over the sample, in order."


def example_clips(runs: Sequence[RunData], shown: Sequence[Example], remark: str) -> str:
    if not shown:
        return page.note(remark or _NOTHING_ASKED)
    predicted = any(guess.predicted is not None for ex in shown for guess in ex.guesses)
    how = (
        f"{len(shown)} samples, spread over the classes; every other one is a mistake of "
        f"{runs[-1].name}, as far as there are any, so the share of mistakes here says nothing "
        "about accuracy. "
        if predicted
        else f"{len(shown)} samples, spread over the classes, without predictions: these are "
        "kept by an evaluation (eval-*.json). "
    )
    html = "".join(_example(example, predicted) for example in shown)
    if all(len(example.strip.images) == 1 for example in shown):  # images
        return page.note(how) + f'<div class="cards">{html}</div>'
    return page.note(how + _EVENLY) + html


def _example(example: Example, predicted: bool) -> str:
    label = example.label if example.label is not None else "no label"
    guesses = ""
    for guess in example.guesses if predicted else ():
        said = f"<b>{page.text(guess.predicted)}</b> {percent(guess.probability)}"
        right: bool | None = guess.right
        if guess.predicted is None:
            right, said = None, "no prediction of this label on file"
        guesses += _said(right, guess.run, html=said)
    texts = example.strip.texts
    caption = f'<p class="note">{page.text(_quoted(texts))}</p>' if texts else ""
    return _card(
        example.strip.sample,
        html=_strip(example.strip)
        + f'<figcaption><span class="quiet">true:</span> <b>{page.text(label)}</b> '
        f'<span class="quiet">· {page.text(example.strip.sample)}</span>{caption}'
        + (f'<ul class="guesses">{guesses}</ul>' if guesses else "")
        + "</figcaption>",
    )


def retrieved_clips(runs: Sequence[RunData], shown: Sequence[Retrieval], remark: str) -> str:
    if not shown:
        return page.note(remark or _NOTHING_ASKED)
    html = page.note(
        f"{len(shown)} captions as queries; every other one a mistake of {runs[-1].name}, as far "
        "as there are any, so the share of mistakes here says nothing about recall. Rank 1: the "
        f"caption's own clip is the nearest. {_EVENLY}"
    )
    for found in shown:
        html += _retrieval(found, runs[-1].name)
    return html


def _retrieval(found: Retrieval, run: str) -> str:
    html = f"<h3>{page.text(_quoted([found.text]))}</h3>"
    html += _row("its own clip", found.own.sample) + _strip(found.own)
    if found.nearest is not None:
        html += _row(f"nearest clip by {run}", found.nearest.sample, _quoted(found.nearest.texts))
        html += _strip(found.nearest)
    places = "".join(_place(place) for place in found.places)
    return _card(
        f"Caption {found.text}",
        html=f'{html}<figcaption><ul class="guesses">{places}</ul></figcaption>',
    )


def _place(place: Place) -> str:
    if place.rank is None:
        return _said(None, place.run, html="no rank on file")
    told = f"rank <b>{place.rank:,}</b> of {place.candidates:,} clips"
    return _said(place.rank == 1, place.run, html=told)


def reconstructed_clips(run: RunData, shown: Sequence[Drawn], remark: str) -> str:
    """One run's pictures under its name."""
    html = f"<h3>{page.text(run.name)}</h3>"
    if not shown:
        return html + page.note(remark or _NOTHING_ASKED)
    task = run.config.task
    assert isinstance(task, MaskedConfig)
    where = f"split {shown[0].split}" if shown[0].split is not None else "the pack"
    told = (
        f"{len(shown)} clips, spread evenly over {where}, with the newest checkpoint. The encoder "
        f"saw the patches that are not grey; {100 * task.mask_ratio:.4g} % are hidden, the same in "
        "all frames, and these alone are predicted in the last row. "
    )
    if task.normalise_targets:
        told += (
            "The network predicts each patch up to its brightness and contrast: a predicted patch "
            "is drawn with the true patch's mean and deviation, so it shows structure only."
        )
    html += page.note(told)
    for clip in shown:
        rows = "".join(
            _row(name) + _strip(strip, aligned=True)
            for name, strip in zip(ROWS, clip.strips, strict=True)
        )
        caption = f'<figcaption class="quiet">{page.text(clip.sample)}</figcaption>'
        html += _card(clip.sample, html=rows + caption)
    return html


def _card(about: str, *, html: str) -> str:
    return f'<figure class="example" aria-label="{page.text(about)}">{html}</figure>\n'


def _row(name: str, *more: str) -> str:
    """What the strip below shows."""
    rest = "".join(f' <span class="quiet">· {page.text(given)}</span>' for given in more if given)
    return f'<p class="row">{page.text(name)}{rest}</p>'


def _strip(strip: Strip, *, aligned: bool = False) -> str:
    """`aligned`: strips below each other keep the same frame in the same place on any screen."""
    if strip.error:
        return page.note(strip.error)
    height, width = strip.size
    images = "".join(
        f'<img src="{uri}" width="{width}" height="{height}" alt="{page.text(about)}">'
        for uri, about in strip.images
    )
    kind = "strip aligned" if aligned else "strip"
    return f'<div class="{kind}">{images}</div>'


def _said(right: bool | None, run: str, *, html: str) -> str:
    """What a run says, marked right, wrong or neither."""
    kind, mark = {
        True: ("right", "✓ right"), False: ("wrong", "✗ wrong"), None: ("none", "?"),
    }[right]  # fmt: skip
    return (
        f'<li><span class="mark {kind}">{mark}</span> '
        f'<span class="quiet">{page.text(run)}:</span> {html}</li>'
    )


def _quoted(texts: Sequence[str]) -> str:
    return " ".join(f"“{given}”" for given in texts)
