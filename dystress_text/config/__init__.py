"""Settings of text runs, their presets, and the command line that sets them."""
