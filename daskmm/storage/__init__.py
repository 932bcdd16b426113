"""Files written completely or not at all; records, arrays and digests to put into them."""
