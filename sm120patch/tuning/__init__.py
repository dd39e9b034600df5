"""Measured MoE tactics of one GPU: how they are recorded, and the local set they become."""
