"""How a verification is kept and shown: the book, the matrix on the terminal, the page."""
