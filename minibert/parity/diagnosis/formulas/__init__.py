"""What each mistake of the catalogue computes, by subject."""
