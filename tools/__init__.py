"""Scripts that fill the project's pages from committed records."""
