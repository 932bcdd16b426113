"""One HTML page about a fitted model: page, figures and style sheet."""
