"""Solutions of the exercises of 05_ablation, in the names of the lesson."""

# Exercise 1
answer_1 = tuple(int(i) for i in np.unravel_index(swapped.of("attn").argmax(), swapped.of("attn").shape))

# Exercise 2
answer_2 = share_right(order[:2])

# Exercise 3
answer_3 = int((trace.effect[0] >= trace.clean / 2).sum())
