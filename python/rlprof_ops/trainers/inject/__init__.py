"""The folder that a job puts on PYTHONPATH: its `sitecustomize` lets adapters follow what a trainer
imports."""
