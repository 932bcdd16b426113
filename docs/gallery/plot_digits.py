"""
Centres of handwritten digits
=============================

scikit-learn's digits are divided into sixteen clusters; each centre is an image.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

from daskmm import PowerKMeans

digits = load_digits()
model = PowerKMeans(16, random_state=0).fit(digits.data)

figure, axes = plt.subplots(2, 8, figsize=(10, 3))
for ax, center, size in zip(axes.flat, model.cluster_centers_, model.cluster_sizes_, strict=True):
    ax.imshow(center.reshape(8, 8), cmap="gray_r")
    ax.set_title(f"{int(size)} rows", fontsize=9)
    ax.axis("off")
figure.tight_layout()
