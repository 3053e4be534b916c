"""The crops' short address, which other code imports them by."""

from revisit.data.views.crops import ConstrainedMultiCrop as ConstrainedMultiCrop
