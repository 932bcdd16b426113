"""Files written whole or not at all, records of numbers and arrays, digests."""
