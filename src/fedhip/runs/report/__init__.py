"""The report of a run, or of several side by side: one page of HTML that needs nothing from outside.

record.py      a run as its files hold it
findings.py    what the page says, as numbers: rows of the table, skew, thirds, worst classes
measured.py    metrics beside accuracy, and who gains against whom
figures.py     the pictures, with matplotlib
curves.py      those of metrics: gains, reliability, ROC
svg.py         a picture as part of a page: its colours follow the page's
page.py        all of it put into the templates
csv_tables.py  the tables alone, as CSV
"""

from fedhip.runs.report.page import render_report
from fedhip.runs.report.record import RunRecord

__all__ = ["RunRecord", "render_report"]
