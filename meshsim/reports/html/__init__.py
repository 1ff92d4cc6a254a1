"""One self-contained HTML page about runs: no network, no further files.

``write_html(path, results)`` takes results, their JSON, or what ``run_data`` made of them elsewhere.
"""

from __future__ import annotations

from meshsim.reports.html.page import html_page, write_html
from meshsim.reports.html.run_data import PageRun, run_data

__all__ = ["PageRun", "html_page", "run_data", "write_html"]
