"""Starting points compared by the labelled images that they save."""
