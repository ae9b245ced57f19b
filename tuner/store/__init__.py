"""What searches leave: records that an application reads, and rows that searches write."""
