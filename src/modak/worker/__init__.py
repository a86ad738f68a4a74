"""The worker: what it tells about itself."""
