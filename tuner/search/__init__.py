"""Which config is best: tries dealt to implementations, the final race, and the record that is left."""
