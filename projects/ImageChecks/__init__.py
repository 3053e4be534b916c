"""Images that cannot be read, found before a run begins."""
