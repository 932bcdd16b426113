"""One HTML page about a fitted model: its text, figures and style sheet."""
