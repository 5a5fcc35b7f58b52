"""What all analyses share; nothing in here knows any of them."""
