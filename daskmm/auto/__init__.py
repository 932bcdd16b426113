"""Rules behind "auto": λ, the number of clusters, the scale, the distortion, the bandwidth."""
