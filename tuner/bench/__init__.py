"""Our best kernel beside its peers: the same inputs, one process, in turns; ratios with their intervals.

The page of comparisons, `page.page`, is imported where it is drawn: who only measures need not have what draws it.
"""

from tuner.bench.comparison import Comparison, Row, spelled
from tuner.bench.contender import contender, context
from tuner.bench.events import told
from tuner.bench.forecast import Forecast, forecast
from tuner.bench.leaders import leaders
from tuner.bench.tables import tables
from tuner.bench.venue import Venue, compare, inputs_kind

__all__ = [
    "Comparison",
    "Forecast",
    "Row",
    "Venue",
    "compare",
    "contender",
    "context",
    "forecast",
    "inputs_kind",
    "leaders",
    "spelled",
    "tables",
    "told",
]
