"""One timeline of all ranks: an archive of the full traces, and an overview that stays small."""
