"""How the HTML report looks: one style sheet, light and dark, from narrow to wide."""

from __future__ import annotations

STYLE = """
:root { --ink: #1b1f24; --soft: #5b6570; --line: #d9dee3; --paper: #fff; --wash: #f4f6f8;
  --good: #14713d; --bad: #b3261e; --run: #c3cbd4; --batch: #3573c4; --again: #d9822b;
  color-scheme: light dark }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa4ae; --line: #353c44;
  --paper: #15181c; --wash: #1e2227; --good: #52c07f; --bad: #ff8a80; --run: #4a545f;
  --batch: #6ea3ea; --again: #f0a858 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem 1rem 4rem }
h1 { margin: 0; font-size: 1.9rem; line-height: 1.2 }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
h3 { margin: 0; font-size: 1rem; font-family: ui-monospace, monospace }
p { margin: .3rem 0; max-width: 44rem }
header { padding-left: 1rem; border-left: .4rem solid var(--good) }
header.bad { border-color: var(--bad) }
header.good h1 { color: var(--good) }
header.bad h1 { color: var(--bad) }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(7.5rem, 1fr));
  gap: .6rem; margin-top: 1.4rem }
.figures div { background: var(--wash); border-radius: .4rem; padding: .6rem .8rem }
.figures b { display: block; font-size: 1.5rem; line-height: 1.25;
  font-variant-numeric: tabular-nums }
.figures span { color: var(--soft); font-size: .85rem }
.figures .good b { color: var(--good) }
.figures .bad b, article h3, b.bad { color: var(--bad) }
article { border: 1px solid var(--line); border-left: .3rem solid var(--bad);
  border-radius: .3rem; padding: .7rem .9rem; margin: .6rem 0 }
ul { margin: .4rem 0 0; padding-left: 1.1rem }
code, pre { font: .85rem/1.5 ui-monospace, SFMono-Regular, Menlo, monospace }
code { overflow-wrap: anywhere }
pre { background: var(--wash); border-radius: .4rem; padding: .7rem .9rem; max-height: 20rem;
  overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere }
.key { color: var(--soft); font-size: .85rem; max-width: none }
.key span { display: inline-block; margin-right: 1rem }
.key i { display: inline-block; width: .9rem; height: .7rem; border-radius: 2px;
  margin-right: .35rem }
.chart { margin-top: .8rem }
.lane { display: grid; grid-template-columns: minmax(3.2rem, max-content) 1fr; column-gap: .8rem;
  align-items: center; margin: .35rem 0 }
.lane > span { width: 7rem; font-size: .85rem; color: var(--soft); text-align: right;
  overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
.lane > div { position: relative; height: 1.6rem; background: var(--wash); border-radius: .2rem;
  overflow: hidden }
.lane i { position: absolute; top: .2rem; bottom: .2rem; border-radius: 2px; min-width: 2px }
i.run { background: var(--run); box-shadow: inset -2px 0 0 var(--paper) }
i.batch { background: var(--batch); box-shadow: inset -1px 0 0 var(--paper) }
.lane i.mark { background: var(--paper); width: 2px }
i.again { background: var(--again) }
i.open { background: repeating-linear-gradient(45deg, var(--bad) 0 4px, transparent 4px 8px) }
i.kill { background: var(--bad); width: 3px }
.key i.kill { width: 3px }
.axis > div { background: none; height: 1.3rem; overflow: visible }
.lane.axis i { border-left: 1px solid var(--line); border-radius: 0; bottom: 0; top: 0;
  padding-left: .25rem; font-style: normal }
.axis b { font-weight: 400; font-size: .75rem; color: var(--soft); white-space: nowrap }
details { border-top: 1px solid var(--line); padding: .7rem 0 }
summary { cursor: pointer; font-weight: 600 }
.wide { overflow-x: auto }
table { border-collapse: collapse; margin-top: .6rem; font-size: .88rem;
  font-variant-numeric: tabular-nums }
th { text-align: left; color: var(--soft); font-weight: 600 }
th, td { padding: .2rem .9rem .2rem 0; vertical-align: top; white-space: nowrap }
td:last-child { white-space: normal; min-width: 14rem }
@media (max-width: 36rem) { .lane { grid-template-columns: 1fr; row-gap: .1rem }
  .lane > span { width: auto; text-align: left } .lane.axis > span { display: none } }
"""
