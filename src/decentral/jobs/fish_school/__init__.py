"""A school of fish that estimates where a predator is, by diffusion over a graph that follows the fish.

BlueFog paper (Ying et al., 2021, arXiv:2111.04287), section IV-B and Figures 5 and 6; the motion is that of Tu & Sayed,
"Mobile adaptive networks", IEEE Journal of Selected Topics in Signal Processing, 2011.
"""
