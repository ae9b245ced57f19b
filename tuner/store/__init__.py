"""The results of searches: records that applications read, and tables that searches write."""
