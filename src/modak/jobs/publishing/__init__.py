"""Publish: the one short transaction of an operation in which the seam moves, a module for each flow."""
