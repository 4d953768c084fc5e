"""The one style sheet of all displays: light and dark, in JupyterLab's colours where there is JupyterLab.

Owns colours and spacing. A page that drops it (an untrusted notebook, a mail) still shows tables, lists and marks.
"""

from __future__ import annotations

from typing import Final

LIGHT: Final = {
    "ink": "#1f2328", "paper": "#ffffff", "quiet": "#57606a", "line": "#d0d7de",
    "plain": "#32383f", "plain-paper": "#eaeef2",
    "sure": "#0b5a26", "sure-paper": "#dafbe1",
    "guess": "#6b4700", "guess-paper": "#fff1c5",
    "gone": "#8c1c13", "gone-paper": "#ffe1de",
    "from": "#0a3f80", "from-paper": "#ddebff",
}  # fmt: skip
DARK: Final = {
    "ink": "#e6edf3", "paper": "#161b22", "quiet": "#9da7b3", "line": "#3a424c",
    "plain": "#d5dbe2", "plain-paper": "#2b323b",
    "sure": "#7ee2a0", "sure-paper": "#12361f",
    "guess": "#f2cc60", "guess-paper": "#3d2e00",
    "gone": "#ffb1a8", "gone-paper": "#4a1a17",
    "from": "#a5cdff", "from-paper": "#122e52",
}  # fmt: skip
# What a host says of its own theme wins over what the browser prefers: JupyterLab, VS Code, Material for MkDocs.
_IS_LIGHT: Final = ('[data-jp-theme-light="true"]', ".vscode-light", '[data-md-color-scheme="default"]')
_IS_DARK: Final = ('[data-jp-theme-light="false"]', ".vscode-dark", '[data-md-color-scheme="slate"]')

# The class stands twice: a page styles the tables and lists of its outputs with rules that count more than one class.
_RULES: Final = """\
.vmem{color:var(--jp-content-font-color1,var(--v-ink));background:var(--jp-layout-color0,var(--v-paper));
font:14px/1.45 var(--jp-content-font-family,system-ui,sans-serif);padding:.5em .75em;margin:.25em 0;
border:1px solid var(--v-line);border-radius:6px;overflow-x:auto;text-align:left}
.vmem.vmem p,.vmem.vmem ol,.vmem.vmem ul,.vmem.vmem dl{margin:.35em 0;padding:0;list-style:none}
.vmem.vmem .v-text{white-space:pre-wrap;overflow-wrap:anywhere;overflow:hidden;text-align:start;line-height:1.6}
.vmem.vmem .v-big{font-size:110%;margin:0 0 .35em}
.vmem.vmem .v-quiet,.vmem.vmem caption,.vmem.vmem small{color:var(--v-quiet);font-size:88%}
.vmem.vmem code{font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:88%;color:inherit;
background:none;padding:0;overflow-wrap:anywhere;white-space:pre-wrap}
.vmem.vmem .v-badge{display:inline-block;padding:0 .5em;margin:.1em .3em .1em 0;border-radius:1em;font-size:88%;
max-width:100%;white-space:nowrap;vertical-align:top;color:var(--v-plain);background:var(--v-plain-paper)}
.vmem.vmem .v-sure{color:var(--v-sure);background:var(--v-sure-paper)}
.vmem.vmem .v-guess{color:var(--v-guess);background:var(--v-guess-paper)}
.vmem.vmem .v-gone,.vmem.vmem del{color:var(--v-gone);background:var(--v-gone-paper)}
.vmem.vmem .v-from{color:var(--v-from);background:var(--v-from-paper);white-space:normal;overflow-wrap:anywhere}
.vmem.vmem ins{color:var(--v-sure);background:var(--v-sure-paper);text-decoration:underline}
.vmem.vmem del{text-decoration:line-through}
.vmem.vmem ins,.vmem.vmem del{padding:0 .15em;border-radius:3px}
.vmem.vmem ins b,.vmem.vmem del b{display:inline-block;text-decoration:none}
.vmem.vmem table{border-collapse:collapse;margin:.35em 0;font-size:100%;table-layout:auto;width:100%;border:0}
.vmem.vmem caption{caption-side:top;text-align:left;padding:0 0 .2em}
.vmem.vmem thead th{border-bottom:1px solid var(--v-line);vertical-align:bottom}
.vmem.vmem th,.vmem.vmem td{text-align:left;vertical-align:top;padding:.3em .7em .3em 0;
white-space:normal;max-width:none}
.vmem.vmem tbody tr:nth-child(n){background:none;border-top:1px solid var(--v-line)}
.vmem.vmem tbody th{font-weight:normal}
.vmem.vmem .v-short{white-space:nowrap}
.vmem.vmem .v-middle{min-width:7em}
.vmem.vmem .v-wide{width:50%;min-width:14em}
.vmem.vmem dl{display:grid;grid-template-columns:max-content 1fr;gap:.1em 1em}
.vmem.vmem li{margin:.1em 0}
.vmem.vmem dt{color:var(--v-quiet);font-weight:normal;float:none;width:auto}
.vmem.vmem dd{margin:0;overflow-wrap:anywhere;min-width:0;width:auto}
.vmem.vmem .v-line li{display:flow-root;border-left:3px solid var(--v-line);padding:0 0 .6em .9em;margin:0}
.vmem.vmem progress{width:100%;accent-color:var(--v-from)}
"""


def _set(selector: str, colours: dict[str, str]) -> str:
    return f"{selector}{{{';'.join(f'--v-{name}:{value}' for name, value in colours.items())}}}"


def _below(hosts: tuple[str, ...]) -> str:
    return ",".join(f"{host} .vmem" for host in hosts)


SHEET: Final = "\n".join(
    [
        _set(".vmem", LIGHT),
        f"@media (prefers-color-scheme:dark){{{_set('.vmem', DARK)}}}",
        _set(_below(_IS_LIGHT), LIGHT),
        _set(_below(_IS_DARK), DARK),
        _RULES,
    ]
)
