"""A trace as one HTML file, and the steps of the forward pass in words."""
