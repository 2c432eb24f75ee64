"""Public maps from records with named fields to rows of numbers."""
