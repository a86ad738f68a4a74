"""The console: pages made on the server, with a little script of our own to keep them fresh."""
