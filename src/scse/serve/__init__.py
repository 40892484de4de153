"""A server for looped models: depth per request, and batches that are refilled between loops."""
