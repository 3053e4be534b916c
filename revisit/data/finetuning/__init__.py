"""From a labelled record to the input of a detector, a segmentation or a depth network."""
