"""What goes in: the demo world, its text, its instructions, and readers for public data sets. No torch, no drawing."""
