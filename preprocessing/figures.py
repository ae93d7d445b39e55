"""How figures look: to be used as `with mpl.rc_context(STYLE)`."""

from __future__ import annotations

import logging

from matplotlib.font_manager import fontManager

logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it would tell of each font without a bold one
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito: for all eyes
# A character is drawn by the first that has it: matplotlib's own, or one of a script's that is installed.
FONTS = ["DejaVu Sans", *sorted(name for name in fontManager.get_font_names() if name.startswith("Noto Sans"))]
STYLE = {
    "font.family": FONTS,
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "lines.dashed_pattern": (4, 3),  # gaps wide enough to show a line below
    "lines.dashdot_pattern": (6, 3, 1, 3),
    "legend.edgecolor": "none",
    "legend.framealpha": 0.9,
    "text.parse_math": False,  # names of runs and tokens may hold dollars, and are no formulas
}
