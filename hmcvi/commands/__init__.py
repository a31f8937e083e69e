"""The commands of `hmcvi`."""
