"""The figures' class, in a module of its own: it is imported where a figure is drawn, as Matplotlib may be missing."""

from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure


class TrueTypeFigure(Figure):
    """A figure whose PDF and PostScript embed TrueType fonts, which publishers ask for, whatever the caller's settings are."""

    def savefig(self, *args: Any, **options: Any) -> None:
        with rc_context({"pdf.fonttype": 42, "ps.fonttype": 42}):
            super().savefig(*args, **options)
