"""Tables as they come in: row blocks, files, validation."""
