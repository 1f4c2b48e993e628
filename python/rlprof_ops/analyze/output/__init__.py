"""The answer in words and numbers: report.json, findings, the terminal, the difference between two runs."""
