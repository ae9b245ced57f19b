"""Comparisons of our best kernel with its peers: same inputs, one process, interleaved rounds; ratios with intervals.

The page of comparisons, `page.page`, is imported only when it is drawn, so that measuring does not need its packages.
"""

from tuner.bench.comparison import Comparison, Row, formatted_problem
from tuner.bench.comparison_process import Venue, compare, inputs_kind
from tuner.bench.contender import contender, context
from tuner.bench.events import comparison_of
from tuner.bench.forecast import Forecast, forecast
from tuner.bench.leaders import leaders
from tuner.bench.tables import tables

__all__ = [
    "Comparison",
    "Forecast",
    "Row",
    "Venue",
    "compare",
    "comparison_of",
    "contender",
    "context",
    "forecast",
    "formatted_problem",
    "inputs_kind",
    "leaders",
    "tables",
]
