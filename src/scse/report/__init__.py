"""Figures and tables from numbers. Nothing here needs torch."""
