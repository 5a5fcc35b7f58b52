"""What goes in: the demo world, its texts and instructions, readers for published data."""
