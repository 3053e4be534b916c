"""Class activation maps: where a linear classifier sees its evidence in a frozen network's map."""
