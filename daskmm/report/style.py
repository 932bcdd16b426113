"""The style sheet of a report, for light and dark themes and for print."""

STYLE = """\
:root { color-scheme: light dark;
  --page: #f4f5f7; --paper: #ffffff; --ink: #1c2127; --quiet: #59636e; --line: #d9dee4;
  --blue: #1f5fa8; --grey: #a8b0b8; --red: #b8442a; --note: #fff4d6; --noteline: #d9a514; }
@media (prefers-color-scheme: dark) { :root {
  --page: #101316; --paper: #191d22; --ink: #e4e8ec; --quiet: #9aa5b1; --line: #343b43;
  --blue: #6cabf0; --grey: #76808b; --red: #f0907a; --note: #32290f; --noteline: #c99a1e; } }
@media print { :root { --page: #ffffff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main, header, footer { max-width: 70rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.15rem; margin: 0 0 .5rem; }
p { margin: .4rem 0; }
figcaption, .quiet { color: var(--quiet); }
code, .path { overflow-wrap: anywhere; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: .6rem;
  padding: 1.1rem 1.25rem; margin: 1.1rem 0; }
.numbers { display: grid; gap: .8rem; margin: 1.3rem 0 0;
  grid-template-columns: repeat(auto-fit, minmax(7.6rem, 1fr)); }
.numbers div { background: var(--paper); border: 1px solid var(--line); border-radius: .6rem;
  padding: .6rem .8rem; }
.numbers dt { color: var(--quiet); font-size: .85rem; }
.numbers dd { margin: 0; font-size: 1.35rem; font-weight: 600; overflow-wrap: anywhere; }
.warning { background: var(--note); border-color: var(--noteline); }
.warning ul { margin: .3rem 0 0; padding-left: 1.2rem; }
figure { margin: 0; }
figcaption { font-size: .92rem; margin: .2rem 0 .7rem; max-width: 46rem; }
.wide { overflow-x: auto; }
figure svg { display: block; width: 100%; height: auto; margin: 0 auto; fill: var(--ink);
  font-family: "DejaVu Sans", Verdana, system-ui, sans-serif; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
table { border-collapse: collapse; width: 100%; font-size: .94rem; }
th, td { text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--quiet); font-weight: 600; }
.facts th { font-weight: 500; color: var(--quiet); width: 13rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap;
  overflow-wrap: normal; padding-right: 1.2rem; }
.share { display: block; width: 6rem; height: .6rem; margin-top: .45rem; border-radius: .3rem;
  background: linear-gradient(to right, var(--blue) var(--part), var(--line) var(--part)); }
.feature { display: inline-block; margin-right: .9rem; }
.above { color: var(--red); font-variant-numeric: tabular-nums; }
.below { color: var(--blue); font-variant-numeric: tabular-nums; }
summary { cursor: pointer; color: var(--quiet); margin-top: .6rem; }
footer { color: var(--quiet); font-size: .88rem; padding-bottom: 2.5rem; }
@media (max-width: 40rem) { h1 { font-size: 1.5rem; } .facts th { width: 8rem; }
  section { padding: .9rem .9rem; } .clusters .bar { display: none; }
  main, header, footer { padding-left: .7rem; padding-right: .7rem; } }
"""
