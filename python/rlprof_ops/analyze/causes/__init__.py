"""Which chain of work decided how long a step took, and what a change in it would bring."""
