"""What launches take: arguments that a problem lacks excepted."""

SCALARS = ("beta_scalar", "batch", "seq_len", "heads", "boundaries")
INPUTS = ("q", "k", "v", "beta", "d_o", "cu_seqlens", "initial_state", "dht")
OUTPUTS = ("dq", "dk", "dv", "dh0")
