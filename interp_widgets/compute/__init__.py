"""Worker, cancellation, memory forecast and cache for widgets and scripts."""
