"""Write the report of a `Difference` as text, and draw the rows that differ. The picture needs matplotlib (extra
`plot`)."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from islices.porting.compare.causes import CAUSES
from islices.porting.compare.measure import SHOWN, Place, RowSample, TensorDifference
from islices.porting.compare.steps.fix import step_line
from islices.porting.reports import columns, new_figure

if TYPE_CHECKING:
    from islices.porting.compare.difference import Difference

#: A line of the report shows at most this many elements of a row for each side.
IN_LINE = 4
#: A report that is not verbose shows at most this many tensors.
TENSORS = 2
#: kind of row -> (colour, marker, label); {} in the label stands for the name of the side
STYLES = {
    "only_a": ("#d55e00", "^", "only in {}: |value|"),
    "only_b": ("#009e73", "v", "only in {}: |value|"),
    "both": ("#0072b2", "o", "in both, different: |difference|"),
}
#: The largest number of tensors in the picture.
PANELS = 12


def report(found: Difference, *, verbose: bool = False) -> str:
    """Return the report as plain text: the verdict, the causes, the code that fixes them, and measured differences.

    If verbose is True, list all tensors that differ or have notes, and the first rows that differ or that only one side
    has. If verbose is False, list at most `TENSORS` of these tensors, without rows.
    """
    a, b = found.names
    lines = [_verdict(found)]
    if not found.equal and found.tensors:
        lines += ["", *_why(found), *(f"  {line}" for line in _fixes(found))]
    lines += [f"note: {note}" for note in found.notes]
    shown = [t for t in found.tensors if not t.equal or t.notes]
    for t in shown if verbose else shown[:TENSORS]:
        lines += ["", *_tensor(t, found.names, verbose)]
    if len(shown) > TENSORS and not verbose:
        lines += ["", f"and {len(shown) - TENSORS} more tensors; all of them, and rows: verbose=True (-v)"]
    for name, tensors in ((a, found.only_a), (b, found.only_b)):
        if tensors:
            lines += ["", f"tensors only in {name}: {', '.join(tensors)}"]
    return "\n".join(lines)


def _verdict(found: Difference) -> str:
    a, b = found.names
    same = sum(t.equal for t in found.tensors)
    count = f"{same} of {len(found.tensors)} {'tensor' if len(found.tensors) == 1 else 'tensors'} the same to the bit"
    return f"{a} and {b} {'are equal' if found.equal else 'differ'}: {count}"


def _tensor(t: TensorDifference, names: tuple[str, str], verbose: bool) -> list[str]:
    title = (t.name if t.name == t.name_b or not t.name_b else f"{t.name} / {t.name_b}") or "the tensor"
    lines = [f"{title}  {'same bits' if t.equal else 'differs'}"]
    rows: list[tuple[str, ...]] = [("", "dtype", "shape", "stored rows", "norm", "")]
    for k, name in enumerate(names):
        shape = "x".join("?" if n is None else f"{n}" for n in t.shapes[k]) or "()"
        rows.append((name, t.dtypes[k], shape, f"{t.slots[k]:,}", _number(t.norms[k]), t.kinds[k]))
    lines += columns(rows, "  ", right=(3, 4))
    if t.equal:
        return lines + [f"  note: {note}" for note in t.notes]
    if not t.comparable:
        return [*lines, f"  rows have different shapes, {t.shapes[0][1:]} and {t.shapes[1][1:]}: nothing to compare"]
    lines.append(
        f"  rows: {t.rows:,} in both, {t.differing.count:,} of them differ, {t.only_a.count:,} only in {names[0]}, "
        f"{t.only_b.count:,} only in {names[1]}"
    )
    if t.largest is not None:
        lines.append(_place(t.largest, names))
    lines += [f"  note: {note}" for note in t.notes]
    if not verbose:
        return lines
    for k, sample in enumerate((t.only_a, t.only_b)):
        lines += _rows(f"rows only in {names[k]}", sample, (names[k],))
    return lines + _rows("rows that differ", t.differing, names)


def _place(place: Place, names: tuple[str, str]) -> str:
    where = f"row {place.row}" + (f", element {', '.join(map(str, place.position))}" if place.position else "")
    sides = f"{names[0]} {_number(place.a)}, {names[1]} {_number(place.b)}"
    return f"  largest difference: {place.size:.3g} at {where}: {sides}"


def _rows(title: str, sample: RowSample, names: tuple[str, ...]) -> list[str]:
    if not sample.count:
        return []
    more = f", the first {SHOWN}" if sample.count > SHOWN else ""
    table: list[tuple[str, ...]] = [("row", *names)]
    table += [(f"{row}", *map(_elements, values)) for row, values in sample.first]
    return [f"  {title} ({sample.count:,}{more})", *columns(table, "    ", right=(0,))]


def _elements(values: tuple[float, ...]) -> str:
    return " ".join(f"{_number(v):>12}" for v in values[:IN_LINE]) + (" ..." if len(values) > IN_LINE else "")


def _number(x: float) -> str:
    return f"{x:.7g}"


def _why(found: Difference) -> list[str]:
    if not found.causes:
        return ["why", *_without_cause(found)]
    head = "why: " + ("this makes the sides equal" if len(found.causes) == 1 else "each of these makes the sides equal")
    lines = [head]
    for k, e in enumerate(found.causes, 1):
        how = "to the bit" if e.exact else "within rounding"
        if e.slack:
            how = f"up to {e.slack:.1e} of a tensor's largest value, left to the models' own arithmetic"
        lines.append(f"  {k}. " + "\n     and ".join(cause.text for cause in e.causes) + f"  ({how})")
    return lines


def _fixes(found: Difference) -> list[str]:
    """Return the lines of code that fix the causes of the first explanation. A single line fixes all causes of an
    optimizer step."""
    apart = [t for t in found.tensors if not t.equal]
    if not found.causes or not apart:
        return []
    front = found.frameworks[1]
    kinds = zip(found.frameworks, apart[0].kinds, strict=True)
    other, framework = ({"keras": "tensorflow"}.get(name, name) or kind.split()[0] for name, kind in kinds)
    causes = [c for c in found.causes[0].causes if c.details.get("mends", True)]
    of_step = [c for c in causes if "step" in c.details]
    lines = [step_line(of_step, front, alike=framework == other)] if of_step else []
    lines += [CAUSES[c.name].line(c.details, framework) for c in causes if "step" not in c.details and c.name in CAUSES]
    return [f"fix: in {found.names[1]}, {line}" for line in lines if line]


def _without_cause(found: Difference) -> list[str]:
    if all(t.same_rows for t in found.tensors):
        kinds = [
            ("types", any(t.dtypes[0] != t.dtypes[1] for t in found.tensors)),
            ("shapes", any(not t.equal and t.dtypes[0] == t.dtypes[1] for t in found.tensors)),
            ("sets of tensors", bool(found.only_a or found.only_b)),
        ]
        names = " and ".join(kind for kind, differs in kinds if differs)
        return [f"  only the {names} differ: all rows are the same"]
    if found.rounding:
        return [
            "  rounding: no element is further apart than the order of additions may bring it "
            "((m + 8) eps sum |terms|, m slots a row)"
        ]
    if found.arithmetic is not None:
        return [
            f"  the models' own arithmetic: no element is further apart than {found.arithmetic:.1e} of its tensor's "
            "largest value"
        ]
    what = "all tensors" if len(found.tensors) > 1 else "the sides"
    return [
        f"  no known cause, and no two of them together, makes {what} equal",
        "  (effects of random numbers are not found: compare without dropout, with one seed and the same samples)",
    ]


# ---------------------------------------------------------------------- the picture
def draw(found: Difference) -> Any:
    """Draw a difference. The picture contains one panel for each of the first twelve tensors that differ."""
    shown = [t for t in found.tensors if not t.equal][:PANELS]
    figure = new_figure(9.0, 1.6 + 3.2 * max(1, len(shown)))
    axes = figure.subplots(max(1, len(shown)), 1, squeeze=False)[:, 0]
    for ax, t in zip(axes, shown, strict=False):
        _panel(ax, t, found.names)
    a, b = found.names
    title = f"{a} and {b} are equal" if found.equal else f"Rows that differ between {a} and {b}"
    causes = "; ".join(c.text for e in found.causes[:1] for c in e.causes)
    figure.suptitle("\n".join([title, *textwrap.wrap(causes, 100)]), fontsize=11)
    return figure


def _panel(ax: Any, t: TensorDifference, names: tuple[str, str]) -> None:
    """Draw one point per row that differs. If both sides have the row, the point shows the largest |difference|. If
    only one side has the row, the point shows the largest |value|. The vertical axis is logarithmic. Zeros and numbers
    that are not finite are left out."""
    shape = "x".join("?" if n is None else f"{n:,}" for n in t.shapes[0])
    ax.set_title(f"{t.name or 'the tensor'}  ({t.dtypes[0]}, {shape})", fontsize=10, loc="left")
    for kind, (colour, marker, label) in STYLES.items():
        rows, gaps = t.row_gaps.get(kind, (np.zeros(0), np.zeros(0)))
        drawn = np.isfinite(gaps) & (gaps > 0)
        if len(rows):
            label = f"{label.format(names[kind == 'only_b'])} ({len(rows):,} rows)"
            ax.plot(rows[drawn], gaps[drawn], marker, color=colour, markersize=3, alpha=0.85, label=label)
    ax.set_yscale("log")
    ax.set_xlabel("row")
    ax.set_ylabel("largest in the row")
    ax.grid(color="#dddddd", linewidth=0.6)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=8, frameon=False)
