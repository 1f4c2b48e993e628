"""From reports to the answer: readers, metrics, timeline, HTML report, diff."""
