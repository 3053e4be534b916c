"""Which images to keep, which belong together, and which to label first."""
