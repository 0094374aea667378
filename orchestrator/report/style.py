"""Style sheet and script of report.html, embedded so that the page is self-contained."""

from __future__ import annotations

from orchestrator.report.axes import Axis
from profiles.task_kinds import LOOKS, SHOWN

_LIGHT = " ".join(f"--{task}: {LOOKS[task].light};" for task in SHOWN)
_DARK = " ".join(f"--{task}: {LOOKS[task].dark};" for task in SHOWN)
RUNS = (
    ("#2f6fd0", "#7fb0ff"),
    ("#c2571a", "#f0a35e"),
    ("#158a52", "#4cc38a"),
    ("#8a4bbf", "#c79bf0"),
    ("#a97c00", "#e0bf4f"),
    ("#0f8b8d", "#5fd0d2"),
    ("#c2417c", "#ee86b3"),
    ("#63666d", "#b3b6bd"),
)
"""(light, dark) colour of each run of a comparison, and of each line of a chart without colours of its own."""
_RUNS_LIGHT = " ".join(f"--run{n}: {light};" for n, (light, _) in enumerate(RUNS))
_RUNS_DARK = " ".join(f"--run{n}: {dark};" for n, (_, dark) in enumerate(RUNS))
_STROKES = " ".join(f".{task} {{ stroke: var(--{task}); }}" for task in SHOWN)
_FILLS = " ".join(f".band.{task}, .dot.{task} {{ fill: var(--{task}); }}" for task in SHOWN)
_STROKES += " ".join(f".run{n} {{ stroke: var(--run{n}); }}" for n in range(len(RUNS)))
_FILLS += " ".join(f".band.run{n}, .dot.run{n} {{ fill: var(--run{n}); }}" for n in range(len(RUNS)))
_AXES = " ".join(f"#axis-{axis}:not(:checked) ~ .charts .over.{axis} {{ display: none; }}" for axis in Axis)

STYLE = (
    """
:root { color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --ink: #1c1d20; --soft: #63666d; --rule: #e4e4e1; --code: #f3f3f0;
  """
    + _LIGHT
    + _RUNS_LIGHT
    + """ --mean: #158a52; --worked: #c2417c; --bad: #c8322c; }
@media (prefers-color-scheme: dark) { :root {
  --page: #131417; --card: #1b1d21; --ink: #e9e9e6; --soft: #9a9da5; --rule: #2d3036; --code: #23262b;
  """
    + _DARK
    + _RUNS_DARK
    + """ --mean: #4cc38a; --worked: #ee86b3; --bad: #f2736d; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1240px; padding: 28px 22px 60px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 26px; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 18px; margin: 40px 0 12px; }
.sub, .note, .none { color: var(--soft); }
.sub { margin: 4px 0 22px; }
.note { font-size: 13px; margin: 2px 0 6px; }
.cards, .charts { display: grid; gap: 14px; }
.cards { grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); }
@media (max-width: 700px) { .cards { grid-template-columns: 1fr 1fr; } }
.charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr)); }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px; min-width: 0; }
.card h3 { margin: 0; font-size: 14px; font-weight: 600; }
.big { font-size: 21px; font-weight: 650; font-variant-numeric: tabular-nums; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 12.5px; color: var(--soft); }
.legend svg { width: 20px; height: 8px; margin-right: 5px; display: inline; }
.legend b { color: var(--ink); font-weight: 600; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; }
.grid { stroke: var(--rule); stroke-width: 1; }
.tick { fill: var(--soft); font-size: 11px; }
@media (max-width: 700px) { .tick { font-size: 17px; } .big { font-size: 17px; } body { padding: 20px 14px 40px; } }
.end { text-anchor: end; } .mid { text-anchor: middle; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
"""
    + _STROKES
    + """ .mean { stroke: var(--mean); }
.other { stroke: var(--soft); } .worked { stroke: var(--worked); }
.sampled { stroke-dasharray: 6 4; } .worked { stroke-dasharray: 2 3.5; }
.band { stroke: none; opacity: .17; }
"""
    + _FILLS
    + """ .band.mean, .dot.mean { fill: var(--mean); }
.dot.other { fill: var(--soft); } .dot.worked { fill: var(--worked); }
.band.part { opacity: .62; } .line.part { stroke-width: 0; } .legend .line.part { stroke-width: 6; }
input[name=axis] { position: absolute; opacity: 0; }
label[for^=axis] { display: inline-block; padding: 3px 14px; margin: 0 6px 12px 0; border: 1px solid var(--rule);
  border-radius: 99px; color: var(--soft); cursor: pointer; font-size: 13.5px; }
input[name=axis]:checked + label { color: var(--ink); border-color: var(--soft); background: var(--card); }
input[name=axis]:focus-visible + label { outline: 2px solid var(--run0); }
"""
    + _AXES
    + """
.cursor { stroke: var(--soft); stroke-width: 1; }
.facts { margin: 0; padding-left: 34px; } .facts li { margin: 4px 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
pre, code { font: 12.5px/1.5 ui-monospace, monospace; }
pre { background: var(--code); border-radius: 8px; padding: 10px 12px; overflow-x: auto; margin: 8px 0; }
details summary { cursor: pointer; color: var(--soft); }
.bad { color: var(--bad); }
"""
)

SCRIPT = """
const data = JSON.parse(document.getElementById('data').textContent);
for (const svg of document.querySelectorAll('svg[data-chart]')) {
  const chart = data[svg.dataset.chart], cursor = svg.querySelector('.cursor');
  const marks = svg.closest('.card').querySelectorAll('.legend b'), note = svg.closest('.card').querySelector('.at');
  const nearest = (points, x) => points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), [left, right, width] = chart.plot;
    const share = ((event.clientX - box.left) / box.width * width - left) / (width - left - right);
    const wanted = chart.x[0] + Math.min(1, Math.max(0, share)) * (chart.x[1] - chart.x[0]);
    const step = nearest(chart.lines.flatMap(line => line.points), wanted)[0];
    const at = left + (step - chart.x[0]) / ((chart.x[1] - chart.x[0]) || 1) * (width - left - right);
    cursor.setAttribute('x1', at); cursor.setAttribute('x2', at); cursor.setAttribute('visibility', 'visible');
    const short = value => Number(value.toPrecision(3)).toLocaleString('en');
    note.textContent = ' · ' + (chart.x_name === 'step' ? 'step ' + step : short(step) + ' ' + chart.x_name);
    chart.lines.forEach((line, i) => { const point = nearest(line.points, step);
      marks[i].textContent = point[0] === step ? ' ' + Number(point[1].toPrecision(3)) + chart.unit : ''; });
  });
  svg.addEventListener('pointerleave', () => { cursor.setAttribute('visibility', 'hidden'); note.textContent = '';
    marks.forEach(mark => { mark.textContent = ''; }); });
}
"""
"""Shows the values under the pointer. Reads only the page's own data; writes only textContent and attributes."""
