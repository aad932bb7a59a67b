"""Votes to training rows and files, and labels of others into the store."""
