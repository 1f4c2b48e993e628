"""SQLite's file format, as far as whole columns of numbers need it."""
