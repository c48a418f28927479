"""Model files: safe to load, because they contain data only and every value is validated."""
