"""The store's migrations; ``database.py`` runs them when a store is opened."""
