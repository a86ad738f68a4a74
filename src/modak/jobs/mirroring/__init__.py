"""How a mirrored table follows the stream: its shape, its rows, its files."""
