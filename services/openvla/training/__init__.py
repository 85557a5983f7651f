"""Fine-tuning of OpenVLA: low-rank adapters, with action tokens or OpenVLA-OFT's L1 head."""
