"""Documents: tables, pictures and pages from records."""
