"""What images there are, and their labels: layouts of files, data sets by name, and checks of both."""
