"""Code shared by all analyses; it imports none of them."""
