"""Attempts and records → a report: one self-contained HTML file, a short Markdown text, or JSON."""

from tuner.report.data import UNDECLARED, BeliefFacts, Fact, ReportData, SearchFacts, SpaceFacts
from tuner.report.export import data_json
from tuner.report.page import default_path, markdown, prepare, render, write
from tuner.report.rivals import Rival, rivals_of

__all__ = [
    "UNDECLARED",
    "BeliefFacts",
    "Fact",
    "ReportData",
    "Rival",
    "SearchFacts",
    "SpaceFacts",
    "data_json",
    "default_path",
    "markdown",
    "prepare",
    "render",
    "rivals_of",
    "write",
]
