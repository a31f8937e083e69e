"""Steps that draw, and the methods that are built of them."""
