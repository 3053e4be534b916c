"""One HTML page about one or several runs: collect what their folders hold, draw it, write it."""
