"""Input tables: blocks of rows, files, validation."""
