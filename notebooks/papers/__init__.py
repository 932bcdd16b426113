"""The papers' tables: what is printed, how it is measured here, and what comes of it."""
