"""Making large profiles from real ones, and measuring this service side by side with the stock server."""
