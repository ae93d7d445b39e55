"""How figures look: to be used as `with mpl.rc_context(STYLE)`."""

from __future__ import annotations

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito: for all eyes
STYLE = {
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "legend.edgecolor": "none",
    "legend.framealpha": 0.9,
    "text.parse_math": False,  # names of runs and tokens may hold dollars, and are no formulas
}
