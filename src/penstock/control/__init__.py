"""Control: living environments and policies over what they show. Importing it imports neither torch nor gymnasium."""
