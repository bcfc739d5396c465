"""The pieces of a self-contained HTML page: shell, style sheet, tables, figures, embedded data.

Every function takes plain text and escapes it, but for parameters named `html`, which hold markup
made here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from matinee.measure.draw.plots import DASHES, NUM_COLOURS, clean

STYLE = """
:root { color-scheme: light dark;
  --page: #ffffff; --ink: #1b1e24; --muted: #5a616e; --rule: #e2e5ea; --card: #f6f7f9;
  --run0: #0072b2; --run1: #d55e00; --run2: #009e73; --run3: #b5608f; --run4: #b07a00;
  --run5: #3b93c4; --accent: #0072b2; --right: #00714f; --wrong: #a84300; }
@media (prefers-color-scheme: dark) { :root {
  --page: #121418; --ink: #e7e9ed; --muted: #a0a7b4; --rule: #2c313a; --card: #1a1d23;
  --run0: #56b4e9; --run1: #e69f00; --run2: #2bbf94; --run3: #cc79a7; --run4: #f0e442;
  --run5: #d5703a; --accent: #1f86c7; --right: #2bbf94; --wrong: #f0a35e; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main, header { max-width: 1000px; margin: 0 auto; padding: 0 clamp(1rem, 4vw, 2.5rem); }
header { padding-top: clamp(2.5rem, 7vw, 5rem); }
main { padding-bottom: 5rem; }
h1 { font-size: clamp(1.9rem, 5vw, 2.6rem); line-height: 1.15; letter-spacing: -0.02em;
  font-weight: 650; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.4rem; line-height: 1.3; letter-spacing: -0.01em; font-weight: 620;
  margin: 4.5rem 0 0.4rem; }
h3 { font-size: 1rem; font-weight: 600; margin: 0 0 0.5rem; overflow-wrap: anywhere; }
section > h3:not(:first-of-type) { margin-top: 2.4rem; }
p { max-width: 68ch; margin: 0.5rem 0 1rem; overflow-wrap: anywhere; }
header p { font-size: 1.08rem; }
.note, figcaption { color: var(--muted); font-size: 0.9rem; }
svg + figcaption { margin-top: 0.6rem; }
a { color: inherit; text-underline-offset: 0.2em; text-decoration-color: var(--muted); }
nav ul, ul.legend, ul.guesses { list-style: none; margin: 0; padding: 0; }
nav ul { display: flex; flex-wrap: wrap; gap: 0.3rem 1.4rem; font-size: 0.92rem;
  margin-top: 1.8rem; padding-top: 1rem; border-top: 1px solid var(--rule); }
nav a { display: inline-block; padding: 0.25rem 0; }
.scroll { overflow-x: auto; margin: 1.2rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.94rem;
  min-width: min(100%, 34rem); }
th, td { text-align: right; padding: 0.42rem 0 0.42rem 1.6rem; border-bottom: 1px solid var(--rule);
  white-space: nowrap; vertical-align: baseline; font-weight: 400; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { font-weight: 600; border-bottom-color: var(--muted); vertical-align: bottom;
  white-space: normal; overflow-wrap: break-word; min-width: 5.5rem; }
thead th:first-child { min-width: 0; }
tbody th { color: var(--muted); white-space: normal; min-width: 6.5rem; }
tr.group th, tr.group td { padding-top: 1.3rem; }
tr.strong td { font-weight: 620; font-size: 1.05rem; }
tr.wrap td { white-space: normal; max-width: 16rem; text-wrap: balance; color: var(--muted);
  font-size: 0.86rem; line-height: 1.4; overflow-wrap: anywhere; }
.grid { display: grid; gap: 2.2rem 2.5rem; margin: 1.4rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); }
figure { margin: 0; min-width: 0; break-inside: avoid; max-width: 34rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; print-color-adjust: exact;
  -webkit-print-color-adjust: exact; }
svg * { stroke-linejoin: round; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
ul.legend { display: flex; flex-wrap: wrap; gap: 0.3rem 1.6rem; font-size: 0.92rem;
  margin: 1rem 0; }
ul.legend li { display: flex; align-items: center; gap: 0.55rem; overflow-wrap: anywhere; }
ul.legend svg { width: 2.4rem; height: 0.8rem; flex: none; }
ul.legend svg.box { width: 0.85rem; height: 0.85rem; }
.example { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: clamp(0.8rem, 2.5vw, 1.2rem); margin: 1rem 0; max-width: none; }
.example figcaption { font-size: 0.95rem; color: var(--ink); overflow-wrap: anywhere; }
.example .note { margin: 0; }
.strip { display: grid; grid-template-columns: repeat(8, 1fr); gap: 4px; margin: 0 0 0.8rem; }
.strip img { display: block; width: 100%; height: auto; border-radius: 3px; }
.strip + .note { margin: 0.6rem 0 0.3rem; }
.cards { display: grid; gap: 1rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 14rem), 1fr)); }
.cards .example { margin: 0; }
.cards .strip { grid-template-columns: 6rem; }
.row { margin: 0 0 0.3rem; font-size: 0.88rem; max-width: none; }
ul.guesses { display: flex; flex-wrap: wrap; gap: 0.35rem 2rem; margin-top: 0.5rem; }
ul.guesses li { overflow-wrap: anywhere; }
.mark { display: inline-block; font-size: 0.8rem; font-weight: 600; padding: 0 0.5em;
  border-radius: 99px; border: 1px solid currentColor; margin-right: 0.35em; white-space: nowrap; }
.mark.right { color: var(--right); }
.mark.wrong { color: var(--wrong); border-style: dashed; }
.mark.none { color: var(--muted); border-style: dotted; }
.quiet { color: var(--muted); }
.switch { border: 0; margin: 1rem 0; padding: 0; display: flex; flex-wrap: wrap; gap: 0.4rem 0.6rem;
  align-items: baseline; font-size: 0.92rem; }
.switch legend { float: left; padding: 0; margin-right: 0.4rem; color: var(--muted); }
.switch label { border: 1px solid var(--rule); border-radius: 99px; padding: 0.15rem 0.8rem;
  cursor: pointer; }
.switch input { position: absolute; opacity: 0; }
.switch label:has(:checked) { border-color: var(--accent); font-weight: 600;
  box-shadow: inset 0 0 0 1px var(--accent); }
.switch label:has(:focus-visible) { outline: 2px solid var(--accent); outline-offset: 2px; }
"""
STYLE += "".join(  # the one of several alternatives that `switch` shows
    f":root:has(#over-{i}:checked) .over:not(.over-{i}) {{ display: none; }}\n" for i in range(4)
)
STYLE += """details { border-bottom: 1px solid var(--rule); padding: 0.7rem 0; }
summary { cursor: pointer; font-weight: 600; overflow-wrap: anywhere; }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--rule);
  border-radius: 8px; padding: 0.9rem 1rem; font: 0.82rem/1.5 ui-monospace, SFMono-Regular, Menlo,
  Consolas, monospace; }
@media (max-width: 640px) { .strip { grid-template-columns: repeat(4, 1fr); }
  .cards { grid-template-columns: 1fr 1fr; } .aligned img:nth-child(even) { display: none; }
  th, td { padding-left: 0.9rem; } h2 { margin-top: 3.4rem; } }
@media print { :root { color-scheme: light; --page: #ffffff; --ink: #1b1e24; --muted: #5a616e;
  --rule: #d5d9df; --card: #ffffff; --run0: #0072b2; --run1: #d55e00; --run2: #009e73;
  --run3: #b5608f; --run4: #b07a00; --run5: #3b93c4; --accent: #0072b2; --right: #00714f;
  --wrong: #a84300; }
  body { font-size: 11pt; } main, header { max-width: none; padding-left: 0; padding-right: 0; }
  nav { display: none; } h2 { margin-top: 2rem; break-after: avoid; } .scroll { overflow: visible; }
  tr { break-inside: avoid; } }
"""


def text(value: object) -> str:
    """Anything as text inside an element or a quoted attribute."""
    return escape(clean(str(value)))


def shell(title: str, *, html: str, data: dict[str, Any]) -> str:
    """The whole page around its content; `data` is embedded for programs."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{html}\n"
        f'<script type="application/json" id="report-data">{script_json(data)}</script>\n'
        "</body>\n</html>\n"
    )


def script_json(data: dict[str, Any]) -> str:
    """Strict JSON in which no `<` or `&` is left to end or open anything."""
    dumped = json.dumps(data, allow_nan=False)  # ASCII, so U+2028 is escaped too
    return dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def paragraphs(given: str) -> str:
    """Text with blank lines between paragraphs."""
    parts = [part.strip() for part in given.split("\n\n") if part.strip()]
    return "".join(f"<p>{text(part)}</p>\n" for part in parts)


def section(name: str, heading: str, *, html: str) -> str:
    return (
        f'<section id="{name}" aria-labelledby="{name}-h">\n'
        f'<h2 id="{name}-h">{text(heading)}</h2>\n{html}\n</section>\n'
    )


def note(given: str) -> str:
    return f'<p class="note">{text(given)}</p>\n' if given else ""


def table(
    caption: str, columns: Sequence[str], rows: Sequence[tuple[str, str, Sequence[str]]]
) -> str:
    """A table that scrolls inside its own box. A row is (class of its <tr>, heading, cells)."""
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in ("", *columns))
    body = "".join(
        (f'<tr class="{kind}">' if kind else "<tr>")
        + f'<th scope="row">{text(heading)}</th>'
        + "".join(f"<td>{text(cell)}</td>" for cell in cells)
        + "</tr>\n"
        for kind, heading, cells in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(caption)}">'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def figure(heading: str, *, html: str, caption: str = "") -> str:
    title = f"<h3>{text(heading)}</h3>" if heading else ""
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return f"<figure>{title}{html}{below}</figure>\n"


def run_legend(names: Sequence[str]) -> str:
    """Each run's name beside its line, as the plots draw it."""
    items = "".join(
        '<li><svg viewBox="0 0 36 12" aria-hidden="true"><path d="M1 6H35" fill="none" '
        f'stroke="var(--run{i % NUM_COLOURS})" stroke-width="2.6" '
        f'stroke-dasharray="{DASHES[i % len(DASHES)]}"></path></svg>{text(name)}</li>'
        for i, name in enumerate(names)
    )
    return f'<ul class="legend" aria-label="Runs">{items}</ul>\n'


def box_legend(boxes: Sequence[tuple[str, str]]) -> str:
    """(colour, name) pairs as small squares."""
    items = "".join(
        '<li><svg class="box" viewBox="0 0 10 10" aria-hidden="true"><rect width="10" height="10" '
        f'rx="2" fill="{colour}"></rect></svg>{text(name)}</li>'
        for colour, name in boxes
    )
    return f'<ul class="legend" aria-label="Parts of a step">{items}</ul>\n'


def switch(legend: str, choices: Sequence[str]) -> str:
    """Radio buttons that show one of the `alternatives` on the page, without a script: the first at
    the start, and all of them where a browser does not know CSS's :has(). One a page, for up to
    four choices.
    """
    html = "".join(
        f'<label><input type="radio" name="over" id="over-{i}"{" checked" if i == 0 else ""}>'
        f"{text(choice)}</label>"
        for i, choice in enumerate(choices)
    )
    return f'<fieldset class="switch"><legend>{text(legend)}</legend>{html}</fieldset>\n'


def alternatives(*, html: Sequence[str]) -> str:
    """What each choice of the switch shows here."""
    return "".join(f'<div class="over over-{i}">{one}</div>' for i, one in enumerate(html))


def details(summary: str, content: str) -> str:
    return (
        f"<details><summary>{text(summary)}</summary>"
        f'<pre tabindex="0">{text(content)}</pre></details>\n'
    )
