"""Attempts and records → a report: one self-contained HTML file, a short Markdown text, or JSON."""

from tuner.report.data import Fact, ReportData, SearchFacts, SpaceFacts
from tuner.report.export import data_json
from tuner.report.page import markdown, render, write

__all__ = ["Fact", "ReportData", "SearchFacts", "SpaceFacts", "data_json", "markdown", "render", "write"]
