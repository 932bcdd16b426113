"""Files that are written completely or not at all, and the records and arrays in them."""
