"""What refinement of an amortised posterior buys, for the same time of the processor."""
