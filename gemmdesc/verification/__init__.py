"""Comparing our products with the library's, shape by shape, and measuring what such a comparison can catch."""
